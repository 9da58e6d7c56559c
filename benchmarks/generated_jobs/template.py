"""One recorded step of one rank, as events that can be moved, and what its time consists of."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from stepscope.base.arrays import Floats, Ids, Times
from stepscope.facts.annotate.links.launches import launch_of
from stepscope.facts.load import open_file
from stepscope.models.ranks.calls import calls_timeline, computing_on_device, waits_of
from stepscope.models.ranks.sketch import late_launches
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

TRACES = Path(os.environ.get("STEPSCOPE_TRACES", Path(__file__).parents[3] / "shared" / "traces"))
SOURCES = {
    "dlrm": ("dlrm_8rank_v100/rank5.json.gz", 10),
    "ddp": ("resnet_ddp_mi300x/rank0_act_checkpoint.json.gz", 16),
}
LOADING_NS = 300_000
_CATEGORIES = {
    "cpu_op": "cpu_op",
    "runtime": "cuda_runtime",
    "kernel": "kernel",
    "communication": "kernel",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "annotation": "user_annotation",
}
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
_NUMBERS = ("correlation", "External id", "Sequence number")
_LATENCY_NS = 2_000
_END_NS = 20_000


@dataclass(frozen=True)
class Template:
    """A step that loads a batch, computes, communicates, and at its end waits for the device.

    Attributes:
        events: as in a Kineto trace, with `ts` and `dur` in ns since the step began.
        length_ns: of the step.
    """

    events: list[dict[str, Any]]
    length_ns: int

    @cached_property
    def trace(self) -> Trace:
        """The step twice, annotated."""
        with TemporaryDirectory() as folder:
            path = Path(folder, "rank0.json")
            twice = [
                in_us({**one, "ts": one["ts"] + step * self.length_ns})
                for step in range(2)
                for one in repeated(self.events, step)
            ]  # what a step's time is called depends on the step before
            path.write_text(json.dumps({"traceEvents": twice}))
            return open_file(path, None, cache=False)

    @cached_property
    def pieces(self) -> Pieces:
        """What the step's time consists of."""
        return _pieces(self.trace, self.length_ns)


@dataclass(frozen=True)
class Pieces:
    """A step cut where computing, loading, waiting, or a call begins or ends.

    Attributes:
        edges: ns since the step began, shape (pieces + 1,).
        busy, host, loading, waiting: what a piece is, bool, shape (pieces,).
        host_ns, loading_ns: how much of it is called so, ns, shape (pieces,).
        stages: ns of kernels by stage, shape (pieces, stages).
        kernels: of each name its durations, ns, and the piece of each.
        calls: names of the communication kernels, in order.
        arrival, resumed: for each call the edges at which the rank arrives, and waits for its end.
    """

    edges: Times
    busy: Any
    host: Any
    loading: Any
    waiting: Any
    host_ns: Times
    loading_ns: Times
    stages: Floats
    kernels: dict[str, tuple[Times, Ids]]
    calls: list[str]
    arrival: Ids
    resumed: Ids


def template(name: str, device_scale: float = 1.0) -> Template:
    """A step of a recorded job.

    Args:
        name: `dlrm` or `ddp`.
        device_scale: kernels take this many times as long, as with a larger batch.
    """
    path, step = SOURCES[name]
    trace = open_file(TRACES / path, None, cache=False)
    return _scaled(_of_step(trace, step), device_scale)


def repeated(events: list[dict[str, Any]], step: int) -> Iterator[dict[str, Any]]:
    """The events with the number of their step, and ids that are distinct in each step."""
    for event in events:
        arguments = {
            key: value + 1_000_000 * step if key in _NUMBERS and isinstance(value, int) else value
            for key, value in event["args"].items()
        }
        name = event["name"]
        marked = f"ProfilerStep#{step}" if name == "ProfilerStep#0" else name
        yield {**event, "name": marked, "args": arguments}


def in_us(event: dict[str, Any]) -> dict[str, Any]:
    """The event with times in us, as Kineto writes them."""
    return {**event, "ts": event["ts"] / 1000, "dur": event["dur"] / 1000}


def _of_step(trace: Trace, step: int) -> Template:
    """The events of a step; device work as early as its launches allow."""
    events, steps = trace.events, trace["steps"]
    at = int(np.flatnonzero(steps["step"] == step)[0])
    begin, end = int(steps["start_ns"][at]), int(steps["end_ns"][at])
    on_device = trace["tracks"]["device"][events["track"]] >= 0
    mine = events["step"] == step
    caller = launch_of(trace)
    linked = np.flatnonzero(mine & on_device & (caller >= 0))
    delay = events["start_ns"][linked] - events["start_ns"][caller[linked]]
    early = max(int(delay.min()) - _LATENCY_NS, 0)
    rows = np.flatnonzero(mine & (~on_device | (caller >= 0)))
    found = [_event(trace, int(row), begin - LOADING_NS + (early if on_device[row] else 0)) for row in rows]
    found = [one for one in found if one and one["name"][:13] != "ProfilerStep#"]
    last = max(one["ts"] + one["dur"] for one in found)
    return _framed(found, max(last, end - begin + LOADING_NS) + _END_NS)


def _framed(events: list[dict[str, Any]], length: int) -> Template:
    """The step's mark, its data loading, and the wait for the device at its end."""
    threads: dict[tuple[Any, Any], int] = {}
    for one in events:
        if one["cat"] == "cpu_op":
            key = (one["pid"], one["tid"])
            threads[key] = threads.get(key, 0) + one["dur"]
    marked = [one for one in events if one["name"].startswith(("Optimizer.", "DistributedData"))]
    process, thread = (
        (marked[0]["pid"], marked[0]["tid"]) if marked else max(threads, key=threads.__getitem__)
    )
    cpu_end = max(one["ts"] + one["dur"] for one in events if (one["pid"], one["tid"]) == (process, thread))
    main = {"ph": "X", "pid": process, "tid": thread}
    frame = [
        {**main, "cat": "user_annotation", "name": "ProfilerStep#0", "ts": 0, "dur": length, "args": {}},
        {
            **main,
            "cat": "user_annotation",
            "name": _LOADER,
            "ts": 5_000,
            "dur": LOADING_NS - 10_000,
            "args": {},
        },
        {
            **main,
            "cat": "cuda_runtime",
            "name": "cudaDeviceSynchronize",
            "ts": cpu_end + 1_000,
            "dur": max(length - cpu_end - 3_000, 1),
            "args": {"correlation": 900_000},
        },
    ]
    return Template(frame + events, length)


def _event(trace: Trace, row: int, zero: int) -> dict[str, Any] | None:
    events, tracks = trace.events, trace["tracks"]
    category = str(events.text("category")[row])
    track = int(events["track"][row])
    device = int(tracks["device"][track])
    if category not in _CATEGORIES:
        return None
    cat = "user_annotation" if category == "communication" and device < 0 else _CATEGORIES[category]
    return {
        "ph": "X",
        "cat": cat,
        "name": str(events.text("name")[row]),
        "pid": 0 if device >= 0 else 100,
        "tid": int(str(tracks.text("thread")[track])),
        "ts": int(events["start_ns"][row]) - zero,
        "dur": int(events["duration_ns"][row]),
        "args": {**trace.event_arguments(row), **({"device": 0} if device >= 0 else {})},
    }


def _scaled(step: Template, factor: float) -> Template:
    """Computing takes `factor` times as long, and everything after it moves."""
    if factor == 1:
        return step
    from generated_jobs.warp import moved

    pieces = step.pieces
    lengths = np.diff(pieces.edges) * np.where(pieces.busy, factor, 1.0)
    edges = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return Template(moved(step.events, pieces.edges, edges), int(edges[-1]))


def _pieces(trace: Trace, length: int) -> Pieces:
    events = trace.events
    begin = int(trace["steps"]["start_ns"][1])
    start = events["start_ns"] - begin
    work = computing_on_device(trace)
    step = np.array([begin]), np.array([begin + length])
    timeline = calls_timeline(trace, *step, work, waits_of(trace))
    late = late_launches(trace, work, *step, timeline.waits)
    gaps = Intervals(late.starts - begin, late.ends - begin)
    work = work[events["step"][work] == 1]
    busy = Intervals(start[work], start[work] + events["duration_ns"][work])
    arrival = events["start_ns"][timeline.rows] - begin
    waits = Intervals(timeline.waits.starts - begin, timeline.waits.ends - begin)
    resumed = timeline.resumed - begin
    edges = np.unique(
        np.clip(
            np.concatenate(
                [[0, LOADING_NS, length], busy.starts, busy.ends, waits.starts, waits.ends, arrival, resumed]
            ),
            0,
            length,
        )
    )
    middle = edges[:-1]
    is_busy, is_wait = _covers(busy, middle), _covers(waits, middle)
    loading = middle < LOADING_NS
    loads = _named(trace, "stages", "stage", "data_loading", begin)
    names = events.text("name")
    kernels, stages = _kernels(trace, work, start, edges)
    return Pieces(
        edges=edges,
        busy=is_busy,
        host=~is_busy & ~is_wait & ~loading,
        loading=loading,
        waiting=is_wait,
        host_ns=gaps.within(edges[:-1], edges[1:]),
        loading_ns=loads.within(edges[:-1], edges[1:]),
        stages=stages,
        kernels=kernels,
        calls=[str(names[row]) for row in timeline.rows.tolist()],
        arrival=np.searchsorted(edges, arrival),
        resumed=np.searchsorted(edges, resumed),
    )


def _named(trace: Trace, table: str, column: str, name: str, begin: int) -> Intervals:
    """The intervals of a table that are called so, ns since `begin`."""
    rows = trace[table].text(column).mask(name)
    return Intervals(trace[table]["start_ns"][rows] - begin, trace[table]["end_ns"][rows] - begin)


def _covers(intervals: Intervals, times: Times) -> Any:
    place = np.searchsorted(intervals.starts, times, side="right") - 1
    return (place >= 0) & (times < np.append(intervals.ends, 0)[place])


def _kernels(
    trace: Trace, work: Any, start: Times, edges: Times
) -> tuple[dict[str, tuple[Times, Ids]], Floats]:
    """Durations by name, and by piece and stage; a kernel counts where it starts."""
    events = trace.events
    piece = np.searchsorted(edges, start[work], side="right") - 1
    stage = events["stage"][work]
    stages = np.zeros((len(edges) - 1, len(STAGES)))
    np.add.at(stages, (piece[stage >= 0], stage[stage >= 0]), events["duration_ns"][work][stage >= 0])
    names = events.text("name")
    by_name: dict[str, list[tuple[int, int]]] = {}
    for row, place in zip(work.tolist(), piece.tolist(), strict=True):
        by_name.setdefault(str(names[row]), []).append((int(events["duration_ns"][row]), place))
    return {name: tuple(np.array(rows).T) for name, rows in by_name.items()}, stages
