"""Iterations of inference servers, by the names that these write into a trace.

To support another server, add a row to `RANGES` if it marks its iterations, and to `FUNCTIONS` if
only Python frames name them. Groups of a pattern are counts: `prefill` and `decode` of requests,
`prefill_tokens` and `decode_tokens` of tokens; `tokens` is of the kind that the row names.

Source: vLLM, `GPUWorker.annotate_profile`; SGLang, `build_step_span_name`; TensorRT-LLM,
`PyExecutor._forward_step`; ATOM, `ModelRunner.run_model`; Text Generation Inference, `server.py`;
gpt-fast, `generate.py`; transformers, `generation/utils.py`.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

ANY = "any"  # also names that training may use: a decoder, a codec
# (server, pattern, kind): the kind is empty where the counts decide.
RANGES = (
    # Builds for other devices add to the tokens: `(888_788544)`, `(sq32sk55086sqsq32sqsk55086)`.
    ("vLLM", r"^execute_(?:\d+_)?context_(?P<prefill>\d+)\((?:sq)?(?P<prefill_tokens>\d+)\w*\)"
     r"_generation_(?P<decode>\d+)\((?:sq)?(?P<decode_tokens>\d+)\w*\)", ""),
    ("vLLM before 0.14", r"^execute_new_(?P<prefill>\d+)_cached_(?P<decode>\d+)$", ""),
    ("SGLang", r"^step\[EXTEND bs=(?P<prefill>\d+)(?: toks=(?P<tokens>\d+))?", "prefill"),
    ("SGLang", r"^step\[(?:DECODE|TARGET_VERIFY) bs=(?P<decode>\d+)", "decode"),
    ("SGLang", r"^step\[MIXED bs=\d+ c=(?P<prefill>\d+) g=(?P<decode>\d+)"
     r" c_sq=(?P<prefill_tokens>\d+)(?:.*? g_sq=(?P<decode_tokens>\d+))?", ""),
    ("SGLang", r"^step\[MIXED bs=", "prefill_decode"),
    ("TensorRT-LLM", r"^\[Executor\] _forward_step(?: \d+)?: (?P<prefill>\d+) ctx reqs,"
     r"(?: (?P<prefill_tokens>\d+) ctx tokens,)? (?P<decode>\d+) gen reqs", ""),
    ("ATOM", r"^prefill\[bs=(?P<prefill>\d+)(?: tok=(?P<tokens>\d+))?", "prefill"),
    ("ATOM", r"^(?:eager_)?decode\[bs=(?P<decode>\d+)(?: tok=(?P<tokens>\d+))?", "decode"),
    (ANY, r"(?i)^(?:model_?)?prefill(?:[ _]?(?:step|iteration|forward|batch|chunk))?$", "prefill"),
    (ANY, r"(?i)^(?:model_?)?decode(?:[ _]?(?:step|iteration|forward|batch|one_token|n_tokens))?$",
     "decode"),
)  # fmt: skip
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
        name: of a range, or of a Python frame.
        function: whether it is a frame.
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
    counts = {key: int(value) for key, value in groups.items() if value is not None}
    if "tokens" in counts:
        counts[f"{kind}_tokens"] = counts["tokens"]
    has = {side: max(counts.get(side, 0), counts.get(f"{side}_tokens", 0)) > 0
           for side in ("prefill", "decode")}  # fmt: skip
    stage = kind or "_".join(side for side, some in has.items() if some)
    if not stage:
        return None  # an iteration without requests
    names = ("prefill", "prefill_tokens", "decode", "decode_tokens")
    return Iteration(stage, *(counts.get(name, -1) for name in names))


def _compiled(rows: tuple[tuple[str, str, str], ...]) -> list[tuple[str, re.Pattern[str], str]]:
    return [(server, re.compile(pattern), kind) for server, pattern, kind in rows]


_RANGES, _FUNCTIONS = _compiled(RANGES), _compiled(FUNCTIONS)
