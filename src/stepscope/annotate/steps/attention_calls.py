"""Iterations of a loop that generates tokens, by the recorded shapes of attention.

A model that generates reads the prompt first (a query of many tokens) and then one token at a time,
with keys of all tokens before it. So a query of one token is decode, a longer one is prefill. An
iteration lasts from one lookup of token embeddings to the next.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from stepscope.annotate.links.launch_sides import on_host
from stepscope.arrays import Ids, Mask, Rows, Times
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import begins_run
from stepscope.trace.schema import INFERENCE_STAGES, ITERATIONS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_ATTENTION = re.compile(r"^aten::_?scaled_dot_product_\w*attention\w*$")
_EMBEDDING = "aten::embedding"
_PREFILL, _DECODE = INFERENCE_STAGES.index("prefill"), INFERENCE_STAGES.index("decode")
_LEAST = 2  # calls of attention


class _Attention(NamedTuple):
    """Calls of attention in order of time: events, batch, and lengths of query and key."""

    rows: Rows
    batch: Ids
    query: Ids
    key: Ids


def iterations_by_attention(trace: Trace) -> Table:
    """The iterations of a trace that does not train; none where shapes do not show generation.

    Args:
        trace: as read, with arguments of operators.
    """
    calls = _calls(trace)
    if not _generates(calls):
        return Table(ITERATIONS, {})
    first = np.flatnonzero(_begins_iteration(trace, calls))
    start = _starts(trace, calls.rows[first], calls.rows)
    tokens = calls.batch[first] * calls.query[first]
    stage = np.where(calls.query[first] == 1, _DECODE, _PREFILL)
    return Table(
        ITERATIONS,
        {
            "rank": np.full(len(first), trace.metadata.ranks[0]),
            "track": trace.events["track"][calls.rows[first]],
            "stage": Text(stage.astype(np.int8), INFERENCE_STAGES),
            "start_ns": start,
            "end_ns": _ends(trace, calls, start),
            "prefill_requests": np.where(stage == _PREFILL, calls.batch[first], 0),
            "prefill_tokens": np.where(stage == _PREFILL, tokens, 0),
            "decode_requests": np.where(stage == _DECODE, calls.batch[first], 0),
            "decode_tokens": np.where(stage == _DECODE, tokens, 0),
        },
    )


def _calls(trace: Trace) -> _Attention:
    """The outermost calls of attention with shapes, on the track that has most of them."""
    events = trace.events
    named = events.text("name").where(lambda name: _ATTENTION.match(name) is not None)
    named &= on_host(trace)
    around = inherit(events["parent"], np.where(named, 1, -1))
    rows = np.flatnonzero(named & ~((events["parent"] >= 0) & (around[events["parent"]] > 0)))
    if len(rows):
        rows = rows[events["track"][rows] == np.bincount(events["track"][rows]).argmax()]
    sizes = [_sizes(trace.event_arguments(row).get("Input Dims")) for row in rows.tolist()]
    known = np.array([size is not None for size in sizes], np.bool_)
    found = np.array([size for size in sizes if size], np.int64).reshape(-1, 3)
    return _Attention(rows[known], *found.T)


def _sizes(dims: Any) -> tuple[int, int, int] | None:
    """Batch, query and key length from the shapes of attention's inputs."""
    shapes = [shape for shape in dims or [] if isinstance(shape, list)][:2]
    if len(shapes) < 2 or any(len(shape) < 3 for shape in shapes):
        return None
    sizes = (shapes[0][0], shapes[0][-2], shapes[1][-2])
    return sizes if all(isinstance(size, int) for size in sizes) else None


def _generates(calls: _Attention) -> bool:
    """Whether there are queries of one token: at least as many as others, or with growing keys."""
    if len(calls.rows) < _LEAST:
        return False
    single = calls.query == 1
    some, others = int(single.sum()), int((~single).sum())
    grows = bool((np.diff(calls.key[single]) == 1).any())
    return some >= others > 0 or (others == 0 and grows)


def _begins_iteration(trace: Trace, calls: _Attention) -> Mask:
    """Calls before which token embeddings are looked up; else where the lengths change."""
    starts = trace.events["start_ns"][calls.rows]
    lookups = trace.events["start_ns"][_lookups(trace, calls.rows)]
    if not len(lookups):
        change: Mask = begins_run(calls.query) | begins_run(calls.key)
        return change
    number = np.searchsorted(lookups, starts)
    begins: Mask = np.append(True, number[1:] != number[:-1])
    return begins


def _lookups(trace: Trace, calls: Rows) -> Rows:
    events = trace.events
    found = events.text("name").mask(_EMBEDDING) & (events["track"] == events["track"][calls[0]])
    return np.flatnonzero(found)


def _starts(trace: Trace, first: Rows, calls: Rows) -> Times:
    """From the first lookup after the attention before; else from the attention itself."""
    events = trace.events
    starts, lookups = events["start_ns"][first], events["start_ns"][_lookups(trace, calls)]
    before = np.searchsorted(calls, first) - 1
    ended = np.where(before >= 0, events["start_ns"][calls[np.maximum(before, 0)]], -1)
    place = np.searchsorted(lookups, ended, side="right")
    lookup = np.append(lookups, np.iinfo(np.int64).max)[place]
    result: Times = np.minimum(starts, lookup)
    return result


def _ends(trace: Trace, calls: _Attention, start: Times) -> Times:
    """The end of the last operator that begins before the next iteration."""
    events = trace.events
    work = events.text("category").mask("cpu_op") & (
        events["track"] == events["track"][calls.rows[0]]
    )
    end = np.maximum.accumulate((events["start_ns"] + events["duration_ns"])[work])
    last = np.searchsorted(events["start_ns"][work], np.append(start[1:], np.iinfo(np.int64).max))
    result: Times = end[last - 1]
    return result
