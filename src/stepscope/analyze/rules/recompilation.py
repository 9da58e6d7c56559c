"""`recompilation`: torch.compile or jax.jit compiles during training steps."""

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import WHOLE_RUN, Finding, Gain, Place
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.device.one_off_costs import COMPILING
from stepscope.facts.annotate.jax.calls import CALL
from stepscope.facts.contexts import ContextTree

EXPLAINS = ("host",)
LEAST_TIMES = 2  # torch.compile compiles again once to learn which sizes vary
MOST_NAMES = 2  # functions that the sentence names
_AGAIN = re.compile(r"^compilation of (?P<name>.+?)(?P<backward>, backward)?, again(?:: (?P<why>.+))?$")
_OF_RUN = re.compile(r"^XLA compiled (.+) (\d+) times, ([\d.e+]+) of ([\d.e+]+) s:")
_ADVICE = (
    "A value that the compiler assumed constant changes (TORCH_LOGS=recompiles shows which). Mark "
    "varying sizes with torch._dynamo.mark_dynamic or dynamic=True, pad batches to a few sizes, "
    "and keep changing numbers in tensors."
)
_FIX_IN_JAX = "Pad batches to a few sizes, pass numbers as arrays, and call jax.jit once, outside the loop."
_OF_JAX = (
    "Shapes, types or static arguments change between calls, or the function is created again. "
    f"`stepscope run --contexts` shows which. {_FIX_IN_JAX}"
)
_ITSELF = "Operations outside jax.jit were compiled again"
_OUTSIDE = (
    "Put the code around them under one jax.jit, as in jax.jit(model.init)(key, x). Each is a program "
    "of its own, compiled for each shape."
)
_FIRST = "If these steps are the first, record later ones: each function has to be compiled once. "
_FEW = 3  # steps: with fewer nothing shows whether later ones compile again
_WHY = "at most the compile time"
_WHY_IN_JAX = "the compile time; until caches are warm again, all that follows takes longer, too"


def recompilation(context: RuleContext) -> Iterator[Finding]:
    """Compilation during the steps, after the warm-up; in a whole run, repeated compilation.

    Silent if nothing compiles, if the trace does not record compilation (PyTorch before 2.4), and in contexts
    if a function is compiled again only once: torch.compile does that to learn which sizes vary.
    """
    if context.context_trace and context.contexts is not None:
        yield from _in_tree(context, context.contexts)
        return
    rows = context.search.outermost(context.search.find(COMPILING.pattern, category=("annotation", "cpu_op")))
    rows = np.setdiff1d(rows, context.measures.first_use)
    if not len(rows):
        yield from _in_later_steps(context)
        return
    who = context.by_framework("torch.compile", jax="jax.jit")
    mostly, why, most_ms = "", _WHY, 0.0
    if context.is_jax:
        names = _functions(context, rows)
        mostly = f" Mostly {' and '.join(names[:MOST_NAMES])}." * bool(names) + context.main_place(rows)
        why, most_ms = _WHY_IN_JAX, context.measures.all_but_ms(context.search.works_of_others(names))
    unsure = context.step_count < _FEW and not context.trace.metadata.capture.get("compiles_again")
    yield context.finding(
        f"{who} compiles {context.times(rows)} per step, {rounded(context.measures.ms(rows), 4)} ms.{mostly}",
        _FIRST * unsure + context.by_framework(_ADVICE, jax=_OF_JAX),
        rows,
        context.gains.without(rows, context.measures.ms(rows), why, most_ms),
        recurs=not context.trace.metadata.capture.get("compiles_again"),  # few of many steps are recorded
        limit="warning" if unsure else "critical",
    )


def _in_later_steps(context: RuleContext) -> Iterator[Finding]:
    """What the run compiled again and again, but not in the recorded steps, as a note of the capture says."""
    notes = map(_OF_RUN.match, context.trace.metadata.capture.get("warnings") or ())
    for name, times, *spent in (note.groups() for note in notes if note):
        seconds, elapsed = map(float, spent)
        found = context.finding_at(
            f"jax.jit compiled {name} {times} times, {seconds:g} of {elapsed:g} s. "
            "The recorded steps compile nothing.",
            _OF_JAX,
            (Place(name, "", "", "", None, "", int(times), 1e3 * seconds),),
            Gain(1e3 * seconds, _WHY),
        )
        yield replace(found, of=WHOLE_RUN, step_ms=1e3 * elapsed, steady_ms=1e3 * elapsed)


def _functions(context: RuleContext, rows: Rows) -> list[str]:
    """What is compiled, the longest first."""
    calls = context.search.find(CALL.pattern)
    spent: Counter[str] = Counter()
    for row, call in zip(rows.tolist(), context.search.enclosing(calls)[rows].tolist(), strict=True):
        if call >= 0 and (found := CALL.match(context.search.name(call))):
            spent[found[1]] += int(context.events["duration_ns"][row])
    return [name for name, _ in spent.most_common()]


def _in_tree(context: RuleContext, tree: ContextTree) -> Iterator[Finding]:
    nodes = tree.search(_AGAIN.pattern, kind="annotation")
    if not len(nodes) or not tree.has("call_ns"):
        return
    nodes = _often(tree, nodes)
    files = tree.nodes.text("file")  # a function of JAX has no line of its own
    of_jax = np.array([context.is_jax and not files[int(one)] for one in tree.parent[nodes]], np.bool_)
    who = context.by_framework("torch.compile", jax="jax.jit")
    advice = context.by_framework(_ADVICE, jax=_FIX_IN_JAX)
    yield from _repeated(context, tree, nodes[~of_jax], f"{who} recompiled", advice)
    yield from _repeated(context, tree, nodes[of_jax], _ITSELF, _OUTSIDE)


def _repeated(
    context: RuleContext, tree: ContextTree, nodes: Rows, what: str, advice: str
) -> Iterator[Finding]:
    if not len(nodes):
        return
    spent = tree.own("call_ns")
    nodes = nodes[(-spent.sum[nodes]).argsort(kind="stable")]
    ms = float(spent.sum[nodes].sum()) / 1e6
    times = int(spent.count[[node for node in nodes.tolist() if not _is_backward(tree, node)]].sum())
    mostly = _AGAIN.match(tree.label(nodes[0])) or {"name": "", "why": ""}
    why = f" ({mostly['why']})" if mostly["why"] else ""
    yield context.finding_in_tree(
        f"{what} {rounded(times, 4)} times, {rounded(ms, 4)} ms in total. Mostly {mostly['name']}{why}.",
        advice,
        nodes,
        context.gains.bound(ms / context.step_count, _WHY),
    )


def _often(tree: ContextTree, nodes: Rows) -> Rows:
    place = [_function(tree, node) for node in nodes.tolist()]
    times: Counter[tuple[str, int]] = Counter()
    for node, at in zip(nodes.tolist(), place, strict=True):
        times[at] += 0 if _is_backward(tree, node) else int(tree.own("call_ns").count[node])
    return nodes[[times[at] >= LEAST_TIMES for at in place]]


def _function(tree: ContextTree, node: int) -> tuple[str, int]:
    """File and line of the compiled function, or else its caller."""
    file = tree.nodes.text("file")[node] or ""
    return file, int(tree.nodes["line"][node] if file else tree.parent[node])


def _is_backward(tree: ContextTree, node: int) -> bool:
    found = _AGAIN.match(tree.label(node))
    return bool(found and found["backward"])
