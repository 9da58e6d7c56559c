"""Counts what XLA compiles: while that goes on, a program has not warmed up."""

from __future__ import annotations

from typing import Any

from jax._src import monitoring

_COMPILED = "/jax/core/compile/backend_compile_duration"
_UNREGISTER = "unregister_event_duration_listener"
_UNREGISTER_BEFORE_0_9 = "_unregister_event_duration_listener_by_callback"


class Compilations:
    """How many programs have been compiled since this was made, until closed."""

    def __init__(self) -> None:
        self.count = 0
        self._listener = self._heard  # one object, to be known again
        new = hasattr(monitoring, _UNREGISTER)
        self._unregister = getattr(monitoring, _UNREGISTER if new else _UNREGISTER_BEFORE_0_9)
        monitoring.register_event_duration_secs_listener(self._listener)

    def close(self) -> None:
        """Stop counting."""
        if self._listener in monitoring.get_event_duration_listeners():
            self._unregister(self._listener)

    def _heard(self, event: str, *duration: float, **about: Any) -> None:
        self.count += event == _COMPILED
