"""Memory over time in a single file: tiles from coarse to fine, and what lives at some moments."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from stepscope.errors import StepscopeError
from stepscope.serve.export_request import KeyedAnswer, Report, request_key
from stepscope.serve.memory_answers import MemoryDevice

_MOMENTS = 60
_ROWS = 40


def add_memory(add: Callable[..., bool], report: Report) -> list[str]:
    """Add the memory of the steps that a file covers, or all; returns what is left out.

    Args:
        add: takes keyed answers and writes all of them, or none and returns false.
        report: what the file covers.
    """
    try:
        known = report.ask("memory")
    except StepscopeError:  # nothing was recorded, or that of several ranks
        return []
    if not add(("memory", known), *_verdicts(report, known.devices)):
        return ["the memory over time"]
    left_out = ["what lives at most moments of the memory"]
    for device in known.devices:
        for by in (one.by for one in device.groupings):
            if not all(add(tile) for tile in _tiles(report, device.id, by, known.tile_ns)):
                left_out.append(f"the shortest changes of {device.id}'s memory by {by}")
        add(*_moments(report, device))
    return left_out


def _verdicts(report: Report, devices: list[MemoryDevice]) -> Iterator[KeyedAnswer]:
    for device in devices:
        for request in ("memory_verdict", "memory_moment"):
            key = request_key(request, device=device.id)
            yield key, report.ask(request, device=device.id)


def _tiles(report: Report, device: str, by: str, tile_ns: int) -> Iterator[KeyedAnswer]:
    """The tiles that show a part of the extent, zoom by zoom, none inside an exact one."""
    start, end = _extent(report)
    zoom, tiles = 0, [0]
    while tiles:
        length, inner = tile_ns >> (zoom + 1), []
        for tile in tiles:
            query = {"device": device, "by": by, "zoom": str(zoom), "tile": str(tile)}
            answer = report.ask("memory_tile", **query)
            yield request_key("memory_tile", **query), answer
            if not answer.exact:
                inner += [part for part in (2 * tile, 2 * tile + 1)
                          if part * length < end and (part + 1) * length > start]  # fmt: skip
        zoom, tiles = zoom + 1, inner


def _moments(report: Report, device: MemoryDevice) -> Iterator[KeyedAnswer]:
    """What lives at moments evenly spread over the extent, the largest of it."""
    start, end = _extent(report)
    for number in range(_MOMENTS):
        time = str(start + (end - start) * number // _MOMENTS)
        found = report.ask("memory_moment", device=device.id, time=time)
        key = request_key("memory_moment", device=device.id, time=time)
        yield key, replace(found, living=found.living[:_ROWS])


def _extent(report: Report) -> tuple[int, int]:
    """Start and end of what the file covers, ns since the trace's start."""
    if not report.steps:
        return 0, report.ask("memory").end_ns
    level = report.view.timeline.level(report.steps[0])
    return level.start_ns, level.reach_ns
