"""Which device a graph was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.graph import Graph


def device_of(graph: Graph) -> Mapping[str, Any]:
    """What the trace tells of the first device that works, empty where it tells nothing."""
    numbers = graph.threads["device"][graph.threads["device"] >= 0]
    return graph.trace.metadata.device(int(numbers.min())) if len(numbers) else {}
