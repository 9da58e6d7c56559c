"""`copy_fusions`: operations of XLA that only transpose, copy or convert, and dominate the step."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Rows
from stepscope.summary.numbers import rounded

LEAST_SHARE = 0.1  # of the step
_MOVING = frozenset(("transpose", "copy", "convert"))
_WORDS = _MOVING | frozenset(
    ("loop", "input", "wrapped", "fused", "fusion", "kernel", "computation", "bitcast", "reshape",
     "element", "type")
)  # fmt: skip
_NUMBER = re.compile(r"(\.kd|[._]\d+)+$")


def copy_fusions(context: RuleContext) -> Iterator[Finding]:
    """Transposes, copies and type conversions that XLA could not fuse into what uses them.

    Silent if they run during less than a tenth of the steps, or of the median step. XLA names a
    fusion by the operations in it: one that computes something too has another name.
    """
    if not context.is_jax or context.context_trace:
        return
    rows = _only_moving(context, context.find("|".join(_MOVING)))
    ms = context.spans(rows).total() / 1e6 / context.step_count
    if not len(rows) or ms < LEAST_SHARE * context.steady_ms or context.share(rows) < LEAST_SHARE:
        return
    yield context.finding(
        f"Each step transposes, copies or converts arrays {context.times(rows)} without computing "
        f"anything, {rounded(ms)} ms{context.main_place(rows)}.",
        "Keep one order of dimensions and one type throughout: write products with jnp.einsum or "
        "lax.dot_general instead of transposing before them, NHWC for images, and convert "
        "parameters once per step where they are first used.",
        rows,
        context.without(rows, ms, "at most the time of these operations"),
    )


def _only_moving(context: RuleContext, rows: Rows) -> Rows:
    moves = [only_moves(context.name(row)) for row in rows.tolist()]
    return rows[np.array(moves, np.bool_)]


def only_moves(name: str) -> bool:
    """Whether an operation of XLA of this name moves data and computes nothing.

    Examples:
        >>> [only_moves(name) for name in ("input_transpose_fusion.kd", "wrapped_convert.3")]
        [True, True]
        >>> [only_moves(name) for name in ("transpose_add_fusion", "copy-start.1", "fusion.2")]
        [False, False, False]
    """
    words = set(_NUMBER.sub("", name).split("_"))
    return words <= _WORDS and bool(words & _MOVING)
