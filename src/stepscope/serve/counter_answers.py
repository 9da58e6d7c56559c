"""Answers about counters on the time axis: which there are, what a tile shows, and statistics."""

from __future__ import annotations

import msgspec

from stepscope.errors import ServeError
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.axis import Counter, TimeAxis


class CounterRow(msgspec.Struct):
    """A counter of the axis.

    Attributes:
        id: in requests.
        name: with the device or process it is of.
        short: the same without that.
        device: number of its device, null for the CPU and where none is known.
        unit: `share` of time, `bytes`, or empty where the recorder names none.
        least: smallest value of the trace; of a share 0.
        most: largest value of the trace; of a share 1.
    """

    id: str
    name: str
    short: str
    rank: int
    device: int | None
    unit: str
    least: float
    most: float


class CounterTile(msgspec.Struct):
    """What a tile shows of a counter: runs that each last until the next; columns of one length.

    Attributes:
        counter: as asked for.
        zoom: as asked for.
        tile: as asked for.
        exact: whether each run is one recorded value: the tiles inside this one show nothing more.
        start_ns: start of each run since the tile's start; negative if it began before.
        least: smallest value in the run; of a share of time its mean.
        most: largest value in the run; of a share of time its mean.
    """

    counter: str
    zoom: int
    tile: int
    exact: bool
    start_ns: list[int]
    least: list[float]
    most: list[float]


class CounterStatistics(msgspec.Struct):
    """A counter in an area.

    Attributes:
        id: of the counter.
        least: null for a share of time.
        mean: weighted by time.
        most: null for a share of time.
    """

    id: str
    least: float | None
    mean: float
    most: float | None


def counter(view: TraceView, query: Query) -> CounterTile:
    """What a tile shows of a counter: its values, or the least and the most of each bin.

    Query:
        counter: id of the counter; by default the first.
        zoom: 0 for the whole axis; each further one halves the tile.
        tile: number of the tile, from 0.
    """
    axis = view.time_axis
    id = query.text("counter") or next(iter(axis.counters), "")
    if id not in axis.counters:
        raise ServeError(f"expected the id of a counter, found {id[:40]!r}", 404)
    zoom, tile = tile_number(axis, query)
    runs = axis.counter_tile(axis.counters[id], zoom, tile)
    return CounterTile(
        counter=id,
        zoom=zoom,
        tile=tile,
        exact=runs.exact,
        start_ns=(runs.start_ns - tile * (axis.tile_ns >> zoom)).tolist(),
        least=runs.least.tolist(),
        most=runs.most.tolist(),
    )


def tile_number(axis: TimeAxis, query: Query) -> tuple[int, int]:
    """The zoom and the number of the tile that a request is about.

    Raises:
        ServeError: if there is no such tile.
    """
    zoom, tile = query.number("zoom") or 0, query.number("tile") or 0
    if zoom > axis.deepest or tile >= 1 << zoom:
        raise ServeError(f"expected zoom up to {axis.deepest} and tile below 2^zoom", 404)
    return zoom, tile


def counter_rows(axis: TimeAxis) -> list[CounterRow]:
    """The counters of an axis."""
    return [_row(id, one) for id, one in axis.counters.items()]


def _row(id: str, counter: Counter) -> CounterRow:
    share = counter.unit == "share"
    device = counter.device if counter.device >= 0 else None
    least, most = (0.0, 1.0) if share else counter.values.range
    return CounterRow(
        id, counter.name, counter.short, counter.rank, device, counter.unit, least, most
    )


def counter_statistics(
    axis: TimeAxis, start: int, end: int, ranks: set[int]
) -> list[CounterStatistics]:
    """Statistics in [start, end) of each counter of some ranks that has a known value there."""
    counters = ((id, one) for id, one in axis.counters.items() if one.rank in ranks)
    found = ((id, one.values.statistics(start, end)) for id, one in counters)
    return [CounterStatistics(id, one.least, one.mean, one.most) for id, one in found if one]
