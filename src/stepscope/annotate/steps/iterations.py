"""Find the iterations of an inference server, or of a loop that generates tokens.

An iteration that processes prompts is *prefill*, one that generates tokens is *decode*; a server
with continuous batching also runs both in one. Evidence, the best first: ranges in which a server
marks its iterations, Python functions of servers, model calls in the generating loops of
transformers, shapes of attention (a query of one token is decode).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.annotate.names.autograd_marks import is_backward
from stepscope.annotate.names.inference_names import LOOPS, Iteration, iteration_of
from stepscope.annotate.names.range_names import MODULE_FRAME, MODULE_RANGE
from stepscope.annotate.steps.attention_calls import iterations_by_attention
from stepscope.arrays import Codes8, Mask, Rows
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import INFERENCE_STAGES, ITERATIONS, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_OPTIMIZER = re.compile(r"^Optimizer\.step#|^## optimizer ##$")
_NONE = -1


class _Found(NamedTuple):
    """Events that are iterations, and what is known of each."""

    rows: Rows
    said: list[Iteration]


def find_iterations(trace: Trace) -> Trace:
    """Fill the table `iterations`; it stays empty where nothing is served or generated."""
    trains = _trains(trace)
    ways: list[Callable[[], _Found]] = [
        lambda: _by_names(trace, "annotation", lambda name: iteration_of(name, False, not trains)),
        lambda: _by_names(trace, "python", lambda name: iteration_of(name, True)),
        lambda: _by_loops(trace),
    ]
    found = next((found for way in ways if len((found := way()).rows)), None)
    if found is not None:
        return trace.with_table(_table_of_events(trace, found))
    return trace if trains else trace.with_table(iterations_by_attention(trace))


def stages_by_iteration(trace: Trace, among: Mask) -> Codes8:
    """The stage of the iteration in which each event begins, on the same track; else -1.

    Args:
        trace: with the table `iterations`.
        among: the events to look at, bool, shape (events,).

    Returns:
        Positions in STAGES, int8, shape (events,).
    """
    events, table = trace.events, trace["iterations"]
    stage = np.full(len(events), _NONE, np.int8)
    codes = np.array([STAGES.index(name) for name in INFERENCE_STAGES], np.int8)[table["stage"]]
    for track in np.unique(table["track"]).tolist():
        here, rows = table["track"] == track, np.flatnonzero(among & (events["track"] == track))
        starts, ends, start = (
            table["start_ns"][here],
            table["end_ns"][here],
            events["start_ns"][rows],
        )
        index = np.searchsorted(starts, start, side="right") - 1
        inside = (index >= 0) & (start < ends[np.maximum(index, 0)])
        stage[rows[inside]] = codes[here][index[inside]]
    return stage


def _trains(trace: Trace) -> bool:
    names = trace.events.text("name")
    return bool(is_backward(trace.events).any() or names.where(_is_optimizer).any())


def _is_optimizer(name: str) -> bool:
    return _OPTIMIZER.search(name) is not None


def _by_names(trace: Trace, category: str, said: Callable[[str], Iteration | None]) -> _Found:
    """Events that name an iteration, on the track with most of them: of the CPU if it has any."""
    events = trace.events
    named = events.text("category").mask(category)
    named &= events.text("name").where(lambda name: said(name) is not None)
    host = on_host(trace)
    named &= host if (named & host).any() else ~host
    rows = np.flatnonzero(named)
    if len(rows):
        rows = rows[events["track"][rows] == np.bincount(events["track"][rows]).argmax()]
    rows = _outermost(events, rows)
    return _found(events, rows, said)


def _found(events: Table, rows: Rows, said: Callable[[str], Iteration | None]) -> _Found:
    names = events.text("name").take(rows)
    known = [iteration for name in names if (iteration := said(name or "")) is not None]
    return _Found(rows, known)


def _outermost(events: Table, rows: Rows) -> Rows:
    """Rows of one track that begin after all earlier ones of them have ended."""
    end = events["start_ns"][rows] + events["duration_ns"][rows]
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])[: len(rows)]
    return rows[events["start_ns"][rows] >= reach]


def _by_loops(trace: Trace) -> _Found:
    """The outermost module calls in a generating loop: the first is prefill, the others decode."""
    events = trace.events
    names = events.text("name")
    loop = names.where(lambda name: LOOPS.search(name) is not None)
    if not loop.any():
        return _Found(np.zeros(0, np.intp), [])
    rows = np.flatnonzero(outermost_modules(trace) & on_host(trace))
    numbered = np.where(loop, np.arange(len(events)), _NONE)
    within = inherit(events["parent"], numbered)[rows]
    rows, within = rows[within >= 0], within[within >= 0]
    first = np.append(True, within[1:] != within[:-1])[: len(rows)]
    unknown = (_NONE,) * 4
    said = [Iteration("prefill" if begins else "decode", *unknown) for begins in first.tolist()]
    return _Found(rows, said)


def outermost_modules(trace: Trace) -> Mask:
    """Calls of a module that no other module makes, bool, shape (events,)."""
    events = trace.events
    modules = events.text("name").where(lambda name: name.startswith((MODULE_FRAME, MODULE_RANGE)))
    around = inherit(events["parent"], np.where(modules, 1, _NONE))
    inside = (events["parent"] >= 0) & (around[events["parent"]] > 0)
    outermost: Mask = modules & ~inside
    return outermost


def _table_of_events(trace: Trace, found: _Found) -> Table:
    events, rows = trace.events, found.rows
    start = events["start_ns"][rows]
    counts = np.array([iteration[1:] for iteration in found.said], np.int32).reshape(-1, 4)
    names = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    return Table(
        ITERATIONS,
        {
            "rank": np.full(len(rows), trace.metadata.ranks[0]),
            "track": events["track"][rows],
            "stage": Text.of(iteration.stage for iteration in found.said).recoded(INFERENCE_STAGES),
            "start_ns": start,
            "end_ns": start + events["duration_ns"][rows],
            **{name: counts[:, place] for place, name in enumerate(names)},
        },
    )
