"""The answer that draws a step in a few rows from its start, to lie beside that of another."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np

from stepscope.annotate.steps.step_table import step_lengths
from stepscope.arrays import Ids, Rows, Times
from stepscope.serve.diff_answers import ranks_of
from stepscope.serve.request_parameters import Query
from stepscope.serve.trace_view import TraceView
from stepscope.serve.whatif_answers import Rectangles, Thread
from stepscope.summary.selected_steps import SelectedSteps
from stepscope.timeline.operation_labels import short_name
from stepscope.trace.schema import DEVICE_WORK, STAGES
from stepscope.trace.trace import Trace
from stepscope.whatif.whatif_pane import merge_short

_MOST = 4000


class StepOutline(msgspec.Struct):
    """A step in a few rows: its stages on the CPU, then the work and communication of each device.

    Times are since the step began on its CPU, so outlines of several traces lie on one axis.

    Attributes:
        step: its number.
        rows: what each thread is: 0 for the CPU, then an odd number for each device and the next
            one for its communication. The n-th devices of all traces have the same number.
        threads: the rows by name.
        timeline: what is drawn.
    """

    step: int
    rows: list[int]
    threads: list[Thread]
    timeline: Rectangles


@dataclass(frozen=True)
class _Drawn:
    """What is drawn of a step, by row and time; each column of shape (pieces,).

    Attributes:
        row: 0 for stages on the CPU, then an odd number for each device, then its communication.
        start_ns, end_ns: since the step began.
        stage: index into `STAGES`, -1 outside of all.
        event: -1 for a stage.
    """

    trace: Trace
    number: int
    length_us: float
    row: Ids
    start_ns: Times
    end_ns: Times
    stage: Ids
    event: Ids


def outline(view: TraceView, query: Query) -> StepOutline:
    """A step in a few rows, to be drawn on one axis with that of another trace or rank.

    Query:
        rank: by default the first.
        step: number of a step; by default the one nearest to the median length.
    """
    rank, step = query.number("rank"), query.number("step")
    rank = ranks_of(view.trace)[0] if rank is None else rank
    return view.cached(("outline", rank, step), lambda: _answer(_drawn(view.trace, rank, step)))


def _answer(drawn: _Drawn) -> StepOutline:
    rows = np.unique(drawn.row)
    threads = [_thread(row) for row in rows.tolist()]
    return StepOutline(drawn.number, rows.tolist(), threads, _rectangles(drawn, rows))


def _thread(row: int) -> Thread:
    if row == 0:
        return Thread("CPU", "cpu", 0)
    number, communicates = divmod(row - 1, 2)
    name = "device" if number == 0 else f"device {number + 1}"
    return Thread(f"{name}, communication" if communicates else name, "device", 0)


def _drawn(trace: Trace, rank: int, step: int | None) -> _Drawn:
    """The stages and the device work of a step; by default of the one of median length."""
    steps = SelectedSteps(trace, rank, step).steps
    length = step_lengths(steps)
    at = int(np.abs(length - np.median(length)).argmin())
    number, begin = int(steps["step"][at]), int(steps["start_ns"][at])
    end = int(max(steps["end_ns"][at], steps["device_end_ns"][at]))
    events, stages = trace.events, trace["stages"]
    runs = stages.take((stages["rank"] == rank) & (stages["step"] == number))
    work = _device_work(trace, rank, number)
    start = np.concatenate([runs["start_ns"], events["start_ns"][work]]) - begin
    duration = np.concatenate([runs["end_ns"] - runs["start_ns"], events["duration_ns"][work]])
    row = np.concatenate([np.zeros(len(runs), np.int64), _rows(trace, work)])
    stage = np.concatenate([runs.text("stage").codes, events["stage"][work]])
    event = np.concatenate([np.full(len(runs), -1), work])
    order = np.lexsort((start, row))
    columns = (one[order].astype(np.int64) for one in (row, start, start + duration, stage, event))
    return _Drawn(trace, number, (end - begin) / 1000, *columns)


def _device_work(trace: Trace, rank: int, step: int) -> Rows:
    """The work on devices that was launched in a step."""
    events, tracks = trace.events, trace["tracks"]
    on_device = (tracks["rank"] == rank) & (tracks["device"] >= 0)
    mine = events.text("category").mask(*DEVICE_WORK) & (events["step"] == step)
    found: Rows = np.flatnonzero(mine & on_device[events["track"]] & (events["duration_ns"] > 0))
    return found


def _rows(trace: Trace, work: Rows) -> Ids:
    """The row of each piece of device work."""
    events = trace.events
    _, number = np.unique(trace["tracks"]["device"][events["track"][work]], return_inverse=True)
    communicates = events.text("category").mask("communication")[work]
    found: Ids = 1 + 2 * number.ravel().astype(np.int64) + communicates
    return found


def _rectangles(drawn: _Drawn, rows: Ids) -> Rectangles:
    """Work too short to see is merged with its neighbors of the same stage."""
    if not len(drawn.row):
        return Rectangles(drawn.length_us, [], [], [], [], [], [], [])
    label = drawn.row * (len(STAGES) + 1) + drawn.stage
    first = merge_short(label, drawn.start_ns, drawn.end_ns, _MOST)
    count = np.diff(np.append(first, len(drawn.row)))
    group = np.repeat(np.arange(len(first)), count)
    order = np.lexsort((drawn.start_ns - drawn.end_ns, group))
    longest = order[np.searchsorted(group, np.arange(len(first)))]
    end = np.maximum.reduceat(drawn.end_ns, first)
    return Rectangles(
        length_us=drawn.length_us,
        thread=np.searchsorted(rows, drawn.row[first]).tolist(),
        start_us=(drawn.start_ns[first] / 1000).tolist(),
        duration_us=((end - drawn.start_ns[first]) / 1000).tolist(),
        name=[_name(drawn, piece) for piece in longest.tolist()],
        stage=[STAGES[code] if code >= 0 else None for code in drawn.stage[first].tolist()],
        kind=["stage" if event < 0 else "work" for event in drawn.event[first].tolist()],
        tasks=count.tolist(),
    )


def _name(drawn: _Drawn, piece: int) -> str:
    event = int(drawn.event[piece])
    if event < 0:
        return STAGES[int(drawn.stage[piece])].replace("_", " ")
    return short_name(str(drawn.trace.events.text("name")[event]))
