"""Counts compilations after ready, and on request refuses them."""

from __future__ import annotations

import jax

from jaxserve.errors import EngineError

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileGuard:
    """Listens to JAX's compile events while it is entered; a warm engine's step has none.

    JAX has one listener list a process, so a guard counts only inside its own `with`: another
    engine in the process may be warming up.

    Args:
        forbid: raise on a compile instead of only counting it.
    """

    def __init__(self, forbid: bool) -> None:
        self.count = 0
        self._forbid = forbid
        self._entered = False
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def __enter__(self) -> None:
        self._entered = True

    def __exit__(self, *_: object) -> None:
        self._entered = False

    def close(self) -> None:
        """Stops listening."""
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if self._entered and event == _COMPILE_EVENT:
            self.count += 1
            if self._forbid:
                raise EngineError(
                    f"a step compiled for {duration_secs:.2f} s after ready, against "
                    "forbid_compile: a shape or an option was not warmed up"
                )
