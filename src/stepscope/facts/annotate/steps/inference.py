"""Iterations of an inference server, or of a loop that generates tokens (docs/reference/stages.md).

To support another server, add a row to `RANGES` if it marks its iterations, and to `FUNCTIONS` if
only Python frames name them. Groups of a pattern are counts: `prefill` and `decode` of requests,
`prefill_tokens` and `decode_tokens` of tokens; `tokens` is of the kind that the row names.

Source: vLLM, `GPUWorker.annotate_profile`; SGLang, `build_step_span_name`; TensorRT-LLM,
`PyExecutor._forward_step`; ATOM, `ModelRunner.run_model`; Text Generation Inference, `server.py`;
gpt-fast, `generate.py`; transformers, `generation/utils.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Codes8, Ids, IntArray, Mask, Rows, Times
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.links.launches import on_host
from stepscope.facts.annotate.range_names import MODULE_FRAME, MODULE_RANGE, ends_update, stage_of_range
from stepscope.trace.nesting import innermost, outermost
from stepscope.trace.row_order import begins_run, rows_by_key, running_span
from stepscope.trace.schema import INFERENCE_STAGES, ITERATIONS, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

_NONE = -1
_MOST, _DIGITS = 2**31 - 1, 18  # of a count, as the table stores it, and of one in a name
_OF_TRAINING = ("backward", "optimizer")
_OF_TOKENS = re.compile(r"(?i)prefill|_tokens?\b")  # images and codes are decoded, too


class _Found(NamedTuple):
    """Iterations: their tracks, starts and ends (ns), and what is known of each."""

    track: IntArray
    starts: Times
    ends: Times
    said: list[Iteration]


_EMPTY: Times = np.zeros(0, np.int64)
_NOTHING = _Found(_EMPTY, _EMPTY, _EMPTY, [])


def find_iterations(trace: Trace) -> Trace:
    """Fill the table `iterations`; it stays empty where nothing is served or generated."""
    names = trace.events.text("name")
    ranges = names.take(trace.events.text("category").mask("annotation")).compact()
    trains = bool(is_backward(trace.events).any() or names.where(ends_update).any())
    trains |= bool(ranges.where(lambda name: stage_of_range(name) in _OF_TRAINING).any())
    plain = not trains and bool(ranges.where(lambda name: bool(_OF_TOKENS.search(name))).any())
    ways: list[Callable[[], _Found]] = [
        lambda: _by_names(trace, "annotation", lambda name: iteration_of(name, False, plain)),
        lambda: _by_names(trace, "python", lambda name: iteration_of(name, True)),
        lambda: _by_loops(trace),
        lambda: _NOTHING if trains else _by_attention(trace),
    ]
    found = next((found for way in ways if (found := way()).said), None)
    return trace if found is None else trace.with_table(_table(trace, found))


def stages_by_iteration(trace: Trace, among: Mask) -> Codes8:
    """The stage of the iteration in which each event begins, on the same track; else -1; (events,)."""
    events, table = trace.events, trace["iterations"]
    stage = np.full(len(events), _NONE, np.int8)
    codes = np.array([STAGES.index(name) for name in INFERENCE_STAGES], np.int8)[table["stage"]]
    of_track = rows_by_key(events["track"], np.flatnonzero(among))
    for track, here in rows_by_key(table["track"]).items():
        rows = of_track.get(track, np.zeros(0, np.int64))
        starts, ends, start = (table["start_ns"][here], table["end_ns"][here], events["start_ns"][rows])
        stage[rows] = np.append(codes[here], _NONE)[running_span(starts, ends, start)]
    return stage


def _by_names(trace: Trace, category: str, said: Callable[[str], Iteration | None]) -> _Found:
    """Events that name an iteration, on the track with most of them: of the CPU if it has any."""
    events = trace.events
    named = events.text("category").mask(category)
    named &= events.text("name").where(lambda name: said(name) is not None)
    host = on_host(trace)
    named &= host if (named & host).any() else ~host
    rows = np.flatnonzero(named)
    rows = rows[events["track"][rows] == np.bincount(events["track"][rows], minlength=1).argmax()]
    # Rows of one track that begin after all earlier ones of them have ended.
    end = events.spans(rows)[1]
    reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(end)[:-1])[: len(rows)]
    rows = rows[events["start_ns"][rows] >= reach]
    names = events.text("name").take(rows)
    known = [iteration for name in names if (iteration := said(name or "")) is not None]
    return _found(trace, rows, known)


def _by_loops(trace: Trace) -> _Found:
    """The outermost module calls in each generating loop: the first is prefill, the others decode."""
    events = trace.events
    names = events.text("name")
    loop = names.where(lambda name: LOOPS.search(name) is not None)
    if not loop.any():
        return _NOTHING
    inside = innermost(events["parent"], loop)
    modules = names.where(lambda name: name.startswith((MODULE_FRAME, MODULE_RANGE)))
    rows = np.flatnonzero(outermost(events["parent"], modules & (inside >= 0)) & on_host(trace))
    first = begins_run(inside[rows])
    unknown = (_NONE,) * 4
    said = [Iteration("prefill" if begins else "decode", *unknown) for begins in first.tolist()]
    return _found(trace, rows, said)


def _found(trace: Trace, rows: Rows, said: list[Iteration]) -> _Found:
    return _Found(trace.events["track"][rows], *trace.events.spans(rows), said)


def _table(trace: Trace, found: _Found) -> Table:
    counts = np.array([[min(count, _MOST) for count in one[1:]] for one in found.said], np.int32)
    names = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
    columns: dict[str, Any] = {
        "rank": np.full(len(found.said), trace.metadata.ranks[0]),
        "track": found.track,
        "stage": Text.of(iteration.stage for iteration in found.said).recoded(INFERENCE_STAGES),
        "start_ns": found.starts,
        "end_ns": found.ends,
        **{name: counts[:, place] for place, name in enumerate(names)},
    }
    return Table(ITERATIONS, columns)


# -- names that servers write

_PART = r"(?:[ _]?(?:step|iteration|forward|batch|chunk|one_token|n_tokens)(?:[ _#]*\d+)?)?$"
ANY = "any"  # also names that training may use: a decoder, a codec
# (server, pattern, kind): the kind is empty where the counts decide.
RANGES = (
    # Builds for other devices add to the tokens: `(888_788544)`, `(sq32sk55086sqsq32sqsk55086)`.
    (
        "vLLM",
        r"^execute_(?:\d+_)?context_(?P<prefill>\d+)\((?:sq)?(?P<prefill_tokens>\d+)\w*\)"
        r"_generation_(?P<decode>\d+)\((?:sq)?(?P<decode_tokens>\d+)\w*\)",
        "",
    ),
    ("vLLM before 0.14", r"^execute_new_(?P<prefill>\d+)_cached_(?P<decode>\d+)$", ""),
    ("SGLang", r"^step\[EXTEND bs=(?P<prefill>\d+)(?: toks=(?P<tokens>\d+))?", "prefill"),
    ("SGLang", r"^step\[(?:DECODE|TARGET_VERIFY) bs=(?P<decode>\d+)", "decode"),
    (
        "SGLang",
        r"^step\[MIXED bs=\d+ c=(?P<prefill>\d+) g=(?P<decode>\d+)"
        r" c_sq=(?P<prefill_tokens>\d+)(?:.*? g_sq=(?P<decode_tokens>\d+))?",
        "",
    ),
    ("SGLang", r"^step\[MIXED bs=", "prefill_decode"),
    (
        "TensorRT-LLM",
        r"^\[Executor\] _forward_step(?: \d+)?: (?P<prefill>\d+) ctx reqs,"
        r"(?: (?P<prefill_tokens>\d+) ctx tokens,)? (?P<decode>\d+) gen reqs",
        "",
    ),
    ("ATOM", r"^prefill\[bs=(?P<prefill>\d+)(?: tok=(?P<tokens>\d+))?", "prefill"),
    ("ATOM", r"^(?:eager_)?decode\[bs=(?P<decode>\d+)(?: tok=(?P<tokens>\d+))?", "decode"),
    (ANY, r"(?i)^(?:model_?)?prefill" + _PART, "prefill"),
    (ANY, r"(?i)^(?:model_?)?decode" + _PART, "decode"),
)
FUNCTIONS = (
    ("SGLang", r"sglang/\S*model_runner\.py\(\d+\): forward_extend$", "prefill"),
    ("SGLang", r"sglang/\S*model_runner\.py\(\d+\): forward_decode$", "decode"),
    ("Text Generation Inference", r"text_generation_server/server\.py\(\d+\): Prefill$", "prefill"),
    ("Text Generation Inference", r"text_generation_server/server\.py\(\d+\): Decode$", "decode"),
    ("gpt-fast", r"generate\.py\(\d+\): prefill$", "prefill"),
    ("gpt-fast", r"generate\.py\(\d+\): decode_one_token$", "decode"),
)
# The loops of transformers, whose first model call is prefill and whose others are decode.
LOOPS = re.compile(
    r"transformers/generation/utils\.py\(\d+\): _?(sample|beam_search|group_beam_search"
    r"|greedy_search|beam_sample|contrastive_search|assisted_decoding|constrained_beam_search)$"
)


class Iteration(NamedTuple):
    """What the name of an iteration says: its stage; counts are -1 if unknown."""

    stage: str
    prefill_requests: int
    prefill_tokens: int
    decode_requests: int
    decode_tokens: int


@lru_cache(maxsize=1 << 14)
def iteration_of(name: str, function: bool = False, any_name: bool = True) -> Iteration | None:
    """What the name of an iteration of a server says, or None if it is none.

    Args:
        any_name: whether a plain `prefill` or `decode` counts, which no server is known by.

    Example:
        >>> iteration_of("execute_context_1(512)_generation_3(3)")
        Iteration(stage='prefill_decode', prefill_requests=1, prefill_tokens=512, decode_requests=3, decode_tokens=3)
        >>> iteration_of("step[DECODE bs=16]").stage
        'decode'
    """  # noqa: E501
    for server, pattern, kind in _FUNCTIONS if function else _RANGES:
        if (any_name or server != ANY) and (found := pattern.search(name)):
            return _iteration(found.groupdict(), kind)
    return None


def _iteration(groups: dict[str, str | None], kind: str) -> Iteration | None:
    counts = {key: int(value[:_DIGITS]) for key, value in groups.items() if value is not None}
    if "tokens" in counts:
        counts[f"{kind}_tokens"] = counts["tokens"]
    has = {
        side: max(counts.get(side, 0), counts.get(f"{side}_tokens", 0)) > 0 for side in ("prefill", "decode")
    }
    stage = kind or "_".join(side for side, some in has.items() if some)
    if not stage:
        return None  # an iteration without requests
    names = ("prefill", "prefill_tokens", "decode", "decode_tokens")
    return Iteration(stage, *(counts.get(name, -1) for name in names))


_RANGES, _FUNCTIONS = (
    [(server, re.compile(pattern), kind) for server, pattern, kind in rows] for rows in (RANGES, FUNCTIONS)
)


# -- shapes of attention

_ATTENTION = re.compile(r"^aten::_?scaled_dot_product_\w*attention\w*$")
_EMBEDDING = "aten::embedding"
_LEAST = 2  # calls of attention


class _Attention(NamedTuple):
    """Calls of attention in order of time: events, batch, and lengths of query and key."""

    rows: Rows
    batch: Ids
    query: Ids
    key: Ids


def _by_attention(trace: Trace) -> _Found:
    """From one lookup of token embeddings to the next, where operators' arguments show a generation."""
    calls = _calls(trace)
    if not _generates(calls):
        return _NOTHING
    events = trace.events
    lookups = events.text("name").mask(_EMBEDDING) & (events["track"] == events["track"][calls.rows[0]])
    looked_up = events["start_ns"][lookups]
    first = np.flatnonzero(_begins_iteration(calls, events["start_ns"][calls.rows], looked_up))
    start = _starts(events["start_ns"], calls.rows[first], calls.rows, looked_up)
    sizes = zip(calls.batch[first].tolist(), calls.query[first].tolist(), strict=True)
    said = [
        Iteration("decode", 0, 0, batch, batch)
        if query == 1
        else Iteration("prefill", batch, batch * query, 0, 0)
        for batch, query in sizes
    ]
    return _Found(events["track"][calls.rows[first]], start, _ends(trace, calls, start), said)


def _calls(trace: Trace) -> _Attention:
    """The outermost calls of attention with shapes, on the track that has most of them."""
    events = trace.events
    named = events.text("name").where(lambda name: _ATTENTION.match(name) is not None)
    named &= on_host(trace)
    rows = np.flatnonzero(outermost(events["parent"], named))
    rows = rows[events["track"][rows] == np.bincount(events["track"][rows], minlength=1).argmax()]
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
    """Whether there are queries of one token: at least as many as others, or with keys that mostly grow."""
    if len(calls.rows) < _LEAST:
        return False
    single = calls.query == 1
    some, others = int(single.sum()), int((~single).sum())
    change = np.diff(calls.key[single])
    grows = bool(2 * (change == 1).sum() > (change != 0).sum())
    return some >= others > 0 or (others == 0 and grows)


def _begins_iteration(calls: _Attention, starts: Times, lookups: Times) -> Mask:
    """Calls before which token embeddings are looked up; else where the lengths change."""
    if not len(lookups):
        return begins_run(calls.query, calls.key)
    return begins_run(np.searchsorted(lookups, starts))


def _starts(begin: Times, first: Rows, calls: Rows, lookups: Times) -> Times:
    """From the first lookup after the attention before; else from the attention itself."""
    before = np.searchsorted(calls, first) - 1
    ended = np.where(before >= 0, begin[calls[np.maximum(before, 0)]], -1)
    place = np.searchsorted(lookups, ended, side="right")
    lookup = np.append(lookups, np.iinfo(np.int64).max)[place]
    return np.minimum(begin[first], lookup)


def _ends(trace: Trace, calls: _Attention, start: Times) -> Times:
    """The end of the last operator that begins before the next iteration."""
    events = trace.events
    work = events.text("category").mask("cpu_op") & (events["track"] == events["track"][calls.rows[0]])
    end = np.maximum.accumulate(events.spans(work)[1])
    last = np.searchsorted(events["start_ns"][work], np.append(start[1:], np.iinfo(np.int64).max))
    return end[last - 1]
