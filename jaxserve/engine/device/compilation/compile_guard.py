"""CompileGuard: counts compilations after the engine is ready, and can refuse them."""

from __future__ import annotations

import jax

from jaxserve.errors import EngineError

_COMPILE_EVENT = "/jax/core/compile/backend_compile_duration"


class CompileGuard:
    """Counts JAX's compile events inside its `with` block; the steps of a warm engine have none.

    JAX reports the events of the whole process, in which another engine may be warming up, so only
    those inside the block count.

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
                    f"a step compiled for {duration_secs:.2f} s after the engine was ready, which "
                    "forbid_compile forbids: a shape or an option was not warmed up"
                )
