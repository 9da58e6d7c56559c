"""`kernel_fusion`: chains of small elementwise kernels (DEEPCONTEXT 4.3, 2; 6.3)."""

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Ids, Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.device.kernel_kinds import is_fused
from stepscope.facts.annotate.jax.scopes import programs
from stepscope.trace.schema import PASS_STAGES

CAUSE = "elementwise"
SMALL_NS = 10_000  # about what a launch costs: shorter kernels cannot keep the device busy
MANY = 20  # per step: fewer small kernels take 0.2 ms at most
LONG_CHAIN = 3  # kernels
LEAST_LARGE = 0.10  # of the step
LIBRARIES = {
    "transformers": "Set torch_compile=True in TrainingArguments.",
    "timm": "Run with --torchcompile.",
}
ADVICE = (
    "Fuse them: apply torch.compile to the model or to this function. Or use a fused operator "
    "(F.gelu, F.layer_norm, F.cross_entropy)."
)
JAX = (
    "XLA fuses within one program: put the whole step under one jax.jit. Let no Python and no "
    "jax.block_until_ready come between its parts."
)
_CONVOLUTION = re.compile("conv", re.IGNORECASE)
# Operators that move no data neither fuse nor keep others from it.
_VIEW = re.compile(
    r"^aten::(view|_unsafe_view|reshape|(un)?squeeze|t|transpose|permute|expand|select|slice|detach"
    r"|alias|result_type|empty(_like|_strided)?)$|^detach$"
)


def kernel_fusion(context: RuleContext) -> Iterator[Finding]:
    """Many small elementwise kernels (on a CPU, operators) in a row, which torch.compile fuses.

    On a CPU reductions between them count, and the backward pass of all that count.

    Silent below 20 of them per step, and if they take 10 µs or more: on a device the mean, on a
    CPU the median. Longer ones count from 10 % of the step, in chains of 3 or more. Chains within
    one program of XLA do not count: it has fused them as far as it can.

    Source: DEEPCONTEXT section 4.3, "Kernel Fusion Analysis"; section 6.3, 30.5 s to 23.9 s.
    """
    rows, chain = _kernel_chains(context) if context.measures.has_device else _operator_chains(context)
    if context.is_jax:
        rows, chain = _across_programs(context, rows, chain)
    # On a CPU a few operators that waited for a core would set the mean.
    if not len(rows):
        return
    typical = np.mean if context.measures.has_device else np.median
    typical_ns = float(typical(context.measures.each_ns(rows)))
    what = "kernels" if context.measures.has_device else "operators"
    if typical_ns >= SMALL_NS:
        yield from _large(context, rows, chain, what)
        return
    if context.measures.calls(rows) < MANY:
        return
    chains = len(np.unique(chain))
    if chains >= context.step_count:
        how = f"They run in {rounded(chains / context.step_count, 4)} chains"
    else:
        how = f"They run in {chains} chain{'s' * (chains > 1)} in {context.step_count} steps"
    yield context.finding(
        f"{rounded(context.measures.calls(rows), 4)} small elementwise {what} per step, "
        f"{typical_ns / 1e3:.2g} µs each. {how}.",
        context.advice(ADVICE, jax=JAX, **LIBRARIES),
        rows,
        _gain(context, rows, chain),
    )


def _large(context: RuleContext, rows: Rows, chain: Ids, what: str) -> Iterator[Finding]:
    """Long chains of kernels that are not small: each reads and writes whole tensors."""
    long = np.bincount(chain)[chain] >= LONG_CHAIN
    rows, chain = rows[long], chain[long]
    spent = context.measures.ms(rows)
    if not len(rows) or spent < LEAST_LARGE * context.measures.steady_ms:
        return
    yield context.finding(
        f"Chains of elementwise {what} take {rounded(spent)} ms per step "
        f"({context.measures.part_of_step(rows, spent):.0%}).{context.main_place(rows)} Each of "
        f"{rounded(context.measures.calls(rows), 4)} {what} reads and writes its whole tensor.",
        context.advice(ADVICE, jax=JAX, **LIBRARIES),
        rows,
        _gain(context, rows, chain),
    )


def _gain(context: RuleContext, rows: Rows, chain: Ids) -> Gain:
    """At most the time of the kernels and of their launches; on a CPU all but the longest call."""
    if context.measures.has_device:
        return context.gains.gain(rows, "kernel_fusion")
    cost = context.eager.cost_ns[context.eager.around(rows)]
    longest = np.zeros(int(chain.max()) + 1)
    np.maximum.at(longest, chain, cost)
    ms = context.measures.per_step(cost.sum() - longest.sum())
    bound = context.gains.bound(ms, "if each chain took as long as its longest operator", sure=MOSTLY_SAVED)
    return context.gains.unsure(bound, context.search.within(rows))


def _kernel_chains(context: RuleContext) -> tuple[Rows, Ids]:
    """Kernels with neighbors of their kind, and the number of each one's chain."""
    rows = _kernels(context)
    work = context.search.find(category="kernel", on_device=True)
    chain = _chains(context, work, np.isin(work, rows))
    return work[chain >= 0], chain[chain >= 0]


def _operator_chains(context: RuleContext) -> tuple[Rows, Ids]:
    """Operators that the loop or backward calls, most of each chain elementwise."""
    eager = context.eager
    kind, name = (context.events.text(one) for one in ("kind", "name"))
    elementwise = eager.with_backward(kind.mask("elementwise")[eager.rows])
    fusible = eager.with_backward(kind.mask("elementwise", "reduction")[eager.rows])
    view = eager.with_backward(name.where(lambda text: bool(_VIEW.search(text)))[eager.rows])
    staged = context.events.text("stage").mask(*PASS_STAGES)[eager.rows] & ~view
    chain = np.full(len(eager.rows), -1)
    chain[~view] = _chains(context, eager.rows[~view], (fusible & staged)[~view])
    number = np.bincount(chain[(chain >= 0) & elementwise], minlength=int(chain.max(initial=0)) + 1)
    kept = (chain >= 0) & (number[chain] > 1)
    return eager.rows[kept], chain[kept]


def _across_programs(context: RuleContext, rows: Rows, chain: Ids) -> tuple[Rows, Ids]:
    """Chains of operations of more than one program, as far as their programs are known."""
    pairs = np.unique(np.stack([chain, programs(context.events, rows)], axis=1), axis=0)[:, 0]
    several = np.bincount(pairs, minlength=int(chain.max(initial=0)) + 1) > 1
    return rows[several[chain]], chain[several[chain]]


def _kernels(context: RuleContext) -> Rows:
    """Elementwise kernels that may be fused, except those by which convolutions change layouts."""
    rows = context.search.find(kind="elementwise", stage=PASS_STAGES, on_device=True)
    name = context.events.text("name")
    rows = rows[~name.where(is_fused)[rows]]
    operator = context.search.operator_of(rows)
    inside = name.where(lambda name: bool(_CONVOLUTION.search(name)))
    return rows[(operator < 0) | ~inside[operator]]


def _chains(context: RuleContext, work: Rows, chosen: Mask) -> Ids:
    """The chain number of each piece of work: neighbors on a track with no other work between them.

    -1 for what is not chosen, and for what has no such neighbor.
    """
    order = np.lexsort((work, context.events["track"][work]))
    kept = chosen[order]
    same = np.diff(context.events["track"][work[order]], prepend=-1) == 0
    number = np.cumsum(~(kept & same & np.append(False, kept[:-1])))
    size = np.bincount(number[kept], minlength=int(number.max(initial=0)) + 1)
    result = np.empty(len(work), np.int64)
    result[order] = np.where(kept & (size[number] > 1), number, -1)
    return result
