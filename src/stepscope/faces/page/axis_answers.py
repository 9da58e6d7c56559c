"""Answers about the time axis: its tracks and counters, what a tile shows, an area's statistics."""

import msgspec
import numpy as np

from stepscope.base.arrays import Ids
from stepscope.errors import ServeError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.roofline.operator_work import work_of_pieces
from stepscope.facts.timeline.axis.counters import BINS, Counter, CounterSummary
from stepscope.facts.timeline.axis.time_axis import Area, AreaShare, AxisTrack, DeviceShare, TimeAxis, area_of
from stepscope.trace.declaration import Column
from stepscope.trace.schema import EVENTS, STAGES
from stepscope.trace.sets import Interner

_TIMES = ("start_ns", "duration_ns", "self_ns")
_GROUPED_BY = {column.name: column for column in EVENTS.columns[1:] if column.name not in _TIMES}
_MOST_ROWS = 100  # rows of a table; chosen: the page lists the largest, not all
MOST = 32  # a request more lets others go first


class CounterRow(msgspec.Struct):
    """A counter of the axis."""

    id: str  # in requests
    name: str  # with the device or process it is of
    short: str  # the same without that
    rank: int
    device: int | None  # number of its device, null for the CPU and where none is known
    unit: str  # `share` of time, `bytes`, or empty where the recorder names none
    least: float  # smallest value of the trace; of a share 0
    most: float  # largest value of the trace; of a share 1


class CounterTile(msgspec.Struct):
    """What a tile shows of a counter: runs that each last until the next; columns of one length."""

    counter: str  # as asked for
    zoom: int  # as asked for
    tile: int  # as asked for
    exact: bool  # whether each run is one recorded value: the tiles inside this one show nothing more
    start_ns: list[int]  # start of each run since the tile's start; negative if it began before
    least: list[float]  # smallest value in the run; of a share of time its mean
    most: list[float]  # largest value in the run; of a share of time its mean


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
    zoom, tile = tile_number(axis.deepest, query)
    length = axis.tile_ns >> zoom
    runs = axis.counters[id].values.tile(tile * length, (tile + 1) * length)
    start = (runs.start_ns - tile * length).tolist()
    return filled(CounterTile, runs, counter=id, zoom=zoom, tile=tile, start_ns=start)


def tile_number(deepest: int, query: Query) -> tuple[int, int]:
    """The zoom and the number of the tile that a request is about."""
    zoom, tile = query.number("zoom") or 0, query.number("tile") or 0
    if zoom > deepest or tile >= 1 << zoom:
        raise ServeError(f"expected zoom up to {deepest} and tile below 2^zoom", 404)
    return zoom, tile


def _row(id: str, counter: Counter) -> CounterRow:
    share = counter.unit == "share"
    device = counter.device if counter.device >= 0 else None
    least, most = (0.0, 1.0) if share else counter.values.range
    return CounterRow(id, counter.name, counter.short, counter.rank, device, counter.unit, least, most)


class TrackRow(msgspec.Struct):
    """A track of the axis."""

    # in requests: `t` and the number of the track, `s` and a rank for the stages of its steps, `i`, rank
    # and device for the idle time of a device
    id: str
    kind: str  # `cpu`, `device`, `communication`, `stages` or `idle`
    name: str  # as recorded
    rank: int
    device: int | None  # number of its device, null for a thread
    depths: int  # nesting depths, each drawn as a line
    slices: int  # number of its slices
    busy_ns: int  # time in which it is busy


class Axis(msgspec.Struct):
    """The time axis; times are ns since the trace's start."""

    end_ns: int  # end of the last slice
    tile_ns: int  # length of the tile at zoom 0; each zoom halves it
    deepest: int  # the largest zoom
    bins: int  # bins of a tile
    stages: list[str]  # names of the stages; the `stage` of a slice is an index into them
    tracks: list[TrackRow]  # rank by rank, the CPU first, then device by device
    counters: list[CounterRow]  # rank by rank, device by device


class SliceColumns(msgspec.Struct):
    """Slices shown one by one: columns of one length."""

    depth: list[int]  # nesting depth
    start_ns: list[int]  # since the tile's start; negative if it began before
    duration_ns: list[int]
    event: list[int]  # id of its raw event, -1 for a stage or idle time
    name: list[int]  # index into `strings`
    stage: list[int]  # index into the stages, -1 for none


class BinColumns(msgspec.Struct):
    """Bins that slices cover, also the slices shown one by one: columns of one length."""

    depth: list[int]  # nesting depth
    bin: list[int]  # number of the bin within the tile
    percent: list[int]  # how much of it is covered, 1 to 100
    stage: list[int]  # of a slice in it, index into the stages, -1 for none


class Slices(msgspec.Struct):
    """What a tile shows of a track."""

    track: str  # as asked for
    zoom: int  # as asked for
    tile: int  # as asked for
    exact: bool  # whether `slices` are all of them: the tiles inside this one show nothing more
    slices: SliceColumns
    bins: BinColumns  # of an exact tile none
    strings: list[str]


class WorkShare(msgspec.Struct):
    """Work of one value of a column in an area."""

    name: str  # the value; empty for none
    module: int  # its id, -1 for none
    count: int  # slices that touch the area
    ns: int  # their time inside it, added up
    event: int  # the longest of them


class AreaAnswer(msgspec.Struct):
    """Statistics of an area of the axis."""

    start_ns: int
    end_ns: int
    work_is: str  # `kernels`, or `operators` if no device works in the area
    flops_per_s: float | None  # floating-point operations a second of the work in it, null if none is known
    known: float  # share of the time of matrix products whose operations are known, 0 to 1
    devices: list[DeviceShare]
    threads: list[tuple[str, int]]  # name of each busy one, and for how many ns
    columns: list[str]  # of the events, by which the work can be grouped
    groups: list[WorkShare]  # the work by value of the one asked for, at most 100
    groups_count: int  # how many there are
    counters: dict[str, CounterSummary]  # each counter of the ranks of the tracks, by id


def axis(view: TraceView, query: Query) -> Axis:
    """The time axis and its tracks."""
    axis = view.time_axis
    tracks = [_track_row(track) for track in axis.tracks.values()]
    counters = [_row(id, counter) for id, counter in axis.counters.items()]
    return filled(Axis, axis, bins=BINS, stages=list(STAGES), tracks=tracks, counters=counters)


def slices(view: TraceView, query: Query) -> Slices:
    """What a tile shows of a track: its slices, or how much of each bin they cover.

    Query:
        track: id of the track; by default the first.
        zoom: 0 for the whole axis; each further one halves the tile.
        tile: number of the tile, from 0.
    """
    axis = view.time_axis
    track = _track(axis, query.text("track") or next(iter(axis.tracks), ""))
    zoom, tile = tile_number(axis.deepest, query)
    shown = axis.tile(track, zoom, tile)
    strings: Interner[str] = Interner()
    start, duration = axis.spans(track, shown.row)
    labels = axis.labels(track, shown.row)
    columns = filled(
        SliceColumns,
        labels,
        depth=shown.depth.tolist(),
        start_ns=(start - tile * (axis.tile_ns >> zoom)).tolist(),
        duration_ns=duration.tolist(),
        name=_names(view, labels.event, labels.name, strings),
    )
    percent = np.clip(np.rint(shown.cover * 100), 1, 100).astype(int)
    stage = axis.labels(track, shown.bin_row).stage
    bins = BinColumns(*(column.tolist() for column in (shown.bin_depth, shown.bin, percent, stage)))
    return Slices(track.id, zoom, tile, shown.exact, columns, bins, list(strings))


def area(view: TraceView, query: Query) -> AreaAnswer:
    """Statistics of a part of the axis: busy and idle time by cause, work by any column.

    Query:
        from: its start, ns since the trace's start; by default that start.
        to: its end; by default the end of the axis.
        tracks: ids of tracks, separated by commas; by default all.
        by: a column of the events; by default the name.
    """
    axis = view.time_axis
    start, to = query.number("from") or 0, query.number("to")
    end = axis.end_ns if to is None else to
    if end <= start:
        raise ServeError("expected an area with to after from")
    by = query.text("by") or "name"
    if by not in _GROUPED_BY:
        raise ServeError(f"expected by as one of {', '.join(_GROUPED_BY)}, found {by[:40]!r}")
    wanted = [name for name in query.text("tracks").split(",") if name]
    tracks = [_track(axis, name) for name in wanted] or list(axis.tracks.values())
    ranks = {track.rank for track in tracks}
    counters = ((id, counter) for id, counter in axis.counters.items() if counter.rank in ranks)
    summaries = ((id, counter.values.statistics(start, end)) for id, counter in counters)
    recorded = {id: summary for id, summary in summaries if summary}
    return _area_answer(view, (start, end), area_of(axis, start, end, tracks, by), by, recorded)


def _track(axis: TimeAxis, name: str) -> AxisTrack:
    if name not in axis.tracks:
        raise ServeError(f"expected the id of a track, found {name[:40]!r}", 404)
    return axis.tracks[name]


def _track_row(track: AxisTrack) -> TrackRow:
    device, depths = track.device if track.device >= 0 else None, int(track.depth.max(initial=0)) + 1
    return filled(TrackRow, track, device=device, depths=depths, slices=len(track.rows))


def _names(view: TraceView, events: Ids, own: list[str] | None, strings: Interner[str]) -> list[int]:
    """Codes of the short names of slices; a recorded name is shortened once."""
    if own is not None:
        return strings.codes(own).tolist()
    recorded = view.trace.events.text("name").codes[events].astype(np.int64)
    recorded = 2 * recorded + view.timeline.index.on_device[events]
    _, first, of = np.unique(recorded, return_index=True, return_inverse=True)
    short = strings.codes(view.short_name(event) for event in events[first].tolist())
    return short[of].tolist() if len(of) else []


def _area_answer(
    view: TraceView, span: tuple[int, int], area: Area, by: str, counters: dict[str, CounterSummary]
) -> AreaAnswer:
    rate, known = _operation_rate(view, area, span[1] - span[0])
    return AreaAnswer(
        *span,
        work_is="kernels" if area.on_device else "operators",
        flops_per_s=rate,
        known=known,
        devices=area.devices,
        threads=[(view.time_axis.tracks[id].name, ns) for id, ns in area.threads.items() if ns > 0],
        columns=list(_GROUPED_BY),
        groups=[_work_share(view, _GROUPED_BY[by], share) for share in area.groups[:_MOST_ROWS]],
        groups_count=len(area.groups),
        counters=counters,
    )


def _work_share(view: TraceView, column: Column, share: AreaShare) -> WorkShare:
    name, module = _value(view, column, share), share.code if column.refers == "modules" else -1
    return WorkShare(name, module, share.count, share.ns, share.longest)


def _value(view: TraceView, column: Column, share: AreaShare) -> str:
    if column.name == "name":
        return view.short_name(share.longest)
    if share.code < 0:
        return ""
    if column.kind == "text":
        return view.trace.events.text(column.name).values[share.code] or ""
    if column.refers == "events":
        return view.short_name(share.code)
    if text := {"modules": "path", "tracks": "name"}.get(column.refers):
        return view.trace[column.refers].text(text)[share.code] or ""
    return str(share.code)


def _operation_rate(view: TraceView, area: Area, length: int) -> tuple[float | None, float]:
    """Operations a second of the work in an area, by its share inside, and what part is known."""
    time = view.trace.events["duration_ns" if area.on_device else "self_ns"][area.work]
    pieces = work_of_pieces(view.trace, area.work, time)
    flops = pieces.flops[pieces.products]
    inside = area.inside_ns[pieces.products]
    has = ~np.isnan(flops)
    if not has.any():
        return None, 0.0
    share = np.minimum(inside / np.maximum(time[pieces.products], 1), 1)
    total = float((flops * share)[has].sum())
    return total / length * 1e9, float(inside[has].sum() / max(inside.sum(), 1))


class Tiles(msgspec.Struct):
    """Tiles of tracks and of counters, each in the order in which they were asked for."""

    slices: list[Slices]  # as `slices` answers
    counters: list[CounterTile]  # as `counter` answers


def tiles(view: TraceView, query: Query) -> Tiles:
    """What several tiles show of tracks and of counters.

    Query:
        wanted: at most 32 tiles as `id:zoom:tile`, separated by commas; ids as `axis` has them.
    """
    wanted = [text for text in query.text("wanted").split(",") if text]
    if len(wanted) > MOST:
        raise ServeError(f"expected at most {MOST} tiles, found {len(wanted)}")
    answer, counters = Tiles([], []), view.time_axis.counters
    for text in wanted:
        id, *place = text.rsplit(":", 2)
        if len(place) < 2:
            raise ServeError(f"expected tiles as id:zoom:tile, found {text[:40]!r}")
        numbers = dict(zip(("zoom", "tile"), place, strict=True))
        if id in counters:
            answer.counters.append(counter(view, Query({"counter": id, **numbers})))
        else:
            answer.slices.append(slices(view, Query({"track": id, **numbers})))
    return answer
