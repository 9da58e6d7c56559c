"""Which device a graph was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.graph import Graph


def device_of(graph: Graph) -> Mapping[str, Any]:
    """What the trace tells of the first device that works, empty where it tells nothing."""
    numbers = set(graph.threads["device"][graph.threads["device"] >= 0].tolist())
    devices = graph.trace.metadata.devices
    mine = (one for number, one in enumerate(devices) if one.get("id", number) in numbers)
    return next(mine, {})
