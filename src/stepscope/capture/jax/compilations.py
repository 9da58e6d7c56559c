"""Counts what XLA compiles: while that goes on, a program has not warmed up."""

from __future__ import annotations

from typing import Any

from jax import monitoring
from jax._src.monitoring import get_event_duration_listeners

_COMPILED = "/jax/core/compile/backend_compile_duration"


class Compilations:
    """How many programs have been compiled since this was made, until closed."""

    def __init__(self) -> None:
        self.count = 0
        self._listener = self._heard  # one object, to be known again
        monitoring.register_event_duration_secs_listener(self._listener)

    def close(self) -> None:
        """Stop counting."""
        if self._listener in get_event_duration_listeners():
            monitoring.unregister_event_duration_listener(self._listener)

    def _heard(self, event: str, *duration: float, **about: Any) -> None:
        self.count += event == _COMPILED
