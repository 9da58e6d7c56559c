"""The events that a stopped torch.profiler holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def profiler_events(profiler: Any) -> Iterator[Any]:
    """All events of a stopped torch.profiler with their typed fields, in no order."""
    pending = list(profiler.profiler.kineto_results.experimental_event_tree())
    while pending:
        event = pending.pop()
        yield event
        pending.extend(event.children)
