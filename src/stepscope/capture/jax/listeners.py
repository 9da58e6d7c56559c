"""Listeners of `jax.monitoring`, which JAX can forget by private functions only."""

from __future__ import annotations

from collections.abc import Callable

from jax._src import monitoring

_UNREGISTER = (
    "unregister_event_duration_listener",
    "_unregister_event_duration_listener_by_callback",  # before JAX 0.9
)


def unregister_duration_listener(listener: Callable[..., None]) -> None:
    """Make JAX forget a listener of durations, where it can."""
    names = (name for name in _UNREGISTER if hasattr(monitoring, name))
    if unregister := next(names, None):
        getattr(monitoring, unregister)(listener)
