"""The time axis in a single file: the tiles that show one step, coarse ones first."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.serve.export_request import KeyedAnswer, Report, request_key
from stepscope.timeline.operation import StepId

_REQUESTS = {"track": "slices", "counter": "counter"}


def step_tiles(report: Report, step: str) -> Iterator[KeyedAnswer]:
    """The answers about each tile that shows a part of a step, zoom by zoom.

    A tile inside an exact one shows nothing more, so none is listed.

    Args:
        report: what the file covers.
        step: path of the step.
    """
    axis, (_, rank) = report.view.time_axis, StepId.of(step)
    level = report.view.timeline.level(step)
    start, end = level.start_ns, level.reach_ns
    open_tiles = [("track", id, 0) for id, one in axis.tracks.items() if one.rank == rank]
    open_tiles += [("counter", id, 0) for id, one in axis.counters.items() if one.rank == rank]
    for zoom in range(axis.deepest + 1):
        length, inner = axis.tile_ns >> (zoom + 1), []
        for kind, id, tile in open_tiles:
            query = {kind: id, "zoom": str(zoom), "tile": str(tile)}
            answer = report.ask(_REQUESTS[kind], **query)
            yield request_key(_REQUESTS[kind], **query), answer
            if not answer.exact:
                inner += [
                    (kind, id, part)
                    for part in (2 * tile, 2 * tile + 1)
                    if part * length < end and (part + 1) * length > start
                ]
        open_tiles = inner
