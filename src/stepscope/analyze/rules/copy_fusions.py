"""`copy_fusions`: operations of XLA that only transpose, copy or convert, and dominate the step."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.jax.scopes import scope_of

LEAST_SHARE = 0.1  # of the step
CONVERTED = 1 / 3  # operations per byte: XLA counts one for each conversion, of 2 bytes to 1
# Primitives of JAX that ask for another order of dimensions or another type.
_ASKED = frozenset(
    (
        *("transpose", "copy", "copy_p", "convert_element_type", "reshape", "rev", "concatenate", "slice"),
        *("dynamic_slice", "squeeze", "broadcast_in_dim", "optimization_barrier"),
    )
)
ADVICE = (
    "Keep one order of dimensions and one type throughout. Write products with jnp.einsum or "
    "lax.dot_general instead of transposing before them, use NHWC for images, and convert "
    "parameters once per step where they are first used."
)
INSERTED = (
    "No line asks for most of them: XLA inserted them for the order of dimensions of {}. "
    "Another order of its arrays may save them: a weight stored "
    "transposed, NHWC for images, jnp.einsum that contracts other dimensions; or nothing does."
)
UNTRACED = "The profile does not show what asks for most of them; XLA may have inserted them."
_MOVING = frozenset(("transpose", "copy", "convert"))
_WORDS = frozenset(
    (
        *("loop", "input", "wrapped", "fused", "fusion", "kernel", "computation", "bitcast", "reshape"),
        *("element", "type", *_MOVING),
    )
)
_NUMBER = re.compile(r"(\.kd|[._]\d+)+$")


def copy_fusions(context: RuleContext) -> Iterator[Finding]:
    """Transposes, copies and type conversions that XLA could not fuse into what uses them.

    Silent if they run during less than a tenth of the steps, or of the median step. XLA names a
    fusion by operations in it: one that computes something too mostly has another name, and where
    the program is recorded, one that computes does not count whatever its name is.
    """
    if not context.is_jax or context.context_trace:
        return
    rows = _only_moving(context, context.search.find("|".join(_MOVING)))
    ms = context.measures.elapsed_ms(rows)
    shares = ms / context.measures.steady_ms, context.measures.share(rows)
    if not len(rows) or min(shares) < LEAST_SHARE:
        return
    yield context.finding(
        f"Each step transposes, copies or converts arrays {context.times(rows)}, "
        f"{rounded(ms)} ms. They compute nothing.{context.main_place(rows)}",
        _advice(context, rows),
        rows,
        context.gains.without(rows, ms, "at most the time of these operations"),
    )


def _advice(context: RuleContext, rows: Rows) -> str:
    """What to do, and whether the program asks for most of the time or XLA does."""
    primitives = Counter[str]()
    for row in rows.tolist():
        scope = context.events.text("scope")[row] or ""
        primitives[scope_of(scope).primitive] += int(context.events["duration_ns"][row])
    main, most = primitives.most_common(1)[0]
    asked = sum(ns for name, ns in primitives.items() if name in _ASKED)
    if not main and 2 * most > primitives.total():
        return f"{UNTRACED} {ADVICE}"
    return ADVICE if not main or 2 * asked >= primitives.total() else INSERTED.format(main)


def _only_moving(context: RuleContext, rows: Rows) -> Rows:
    rows = rows[np.array([only_moves(context.search.name(row)) for row in rows.tolist()], np.bool_)]
    flops, width = (
        context.search.each_argument(rows, f"{name}_from_shapes", lambda value: float(value or 0))
        for name in ("flops", "bytes")
    )
    converts = np.array(["convert" in context.search.name(row) for row in rows.tolist()], np.bool_)
    most = np.where(converts, CONVERTED * np.array(width), 0)
    return rows[~(np.array(flops) > most)]  # nan, if unknown, is no more


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
