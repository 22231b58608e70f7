"""Counts compilations after ready, and on request refuses them."""

from __future__ import annotations

import jax

from jaxserve.errors import EngineError

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileGuard:
    """Listens to JAX's compile events. Counting starts at ready().

    Args:
        forbid: raise on a compile after ready instead of only counting it.
    """

    def __init__(self, forbid: bool) -> None:
        self.count = 0
        self._forbid = forbid
        self._ready = False
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def ready(self) -> None:
        """From now on nothing should compile."""
        self._ready = True

    def close(self) -> None:
        """Stops listening."""
        jax.monitoring.unregister_event_duration_listener(self._on_event)

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        if self._ready and event == _COMPILE_EVENT:
            self.count += 1
            if self._forbid:
                raise EngineError(
                    f"a step compiled for {duration_secs:.2f} s after ready, against "
                    "forbid_compile: a shape or an option was not warmed up"
                )
