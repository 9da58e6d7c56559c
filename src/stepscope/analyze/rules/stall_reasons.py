"""`stall_reasons`: why the instructions of hot kernels stall (DEEPCONTEXT 4.3, 4; 6.7)."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.kernel_names import short_kernel
from stepscope.facts.annotate.device.kernel_kinds import kind_of
from stepscope.facts.contexts import ContextTree
from stepscope.trace.schema import PRODUCT_KINDS
from stepscope.trace.table import Text

HOT = 0.10  # of the device time
LEAST = 0.30  # of the samples of a kernel
TOP = 3  # reasons that the sentence names
# A warp that issues, or is ready while another one issues, waits for nothing; host traps know no reason.
BUSY = ("selected", "not_selected", "reason not recorded")
_LOADS = "Each block loads constants again: let blocks do more work, or fuse the kernel with its neighbors."
_WAITS = "It waits for memory: fuse it with its neighbors, read less (16 bits), or read contiguous addresses."
_WAITING_PRODUCT = (
    "It waits for memory: use 16 bits or TF32, and sizes that are multiples of 8. Or let cuDNN choose "
    "another algorithm (torch.backends.cudnn.benchmark = True)."
)
_SHARED = "shared memory or special functions (exp, division)"
# The advice of the vendors' documents, by a part of the reason's name; "" is any other.
ADVICE = (
    ("imc_miss", _LOADS),
    ("constant", _LOADS),
    ("math", "Use vector loads and conversions, and fewer conversions between types."),
    ("long_scoreboard", _WAITS),
    ("waitcnt", _WAITS),
    ("alu_dependency", "It waits for its own results: do more independent work per thread (unroll loops)."),
    ("ex_stall", "It saturates a pipeline: use instructions that do more at once (vectors, 16 bits)."),
    ("lg_throttle", "It makes more memory requests than fit: wider loads (vector types)."),
    ("memory", _WAITS),
    ("short_scoreboard", f"It waits for {_SHARED}: avoid bank conflicts, keep more in registers."),
    ("mio_throttle", f"It saturates {_SHARED}: use wider accesses, keep more in registers."),
    ("no_instruction", "It waits for instructions: it is too short, or larger than the instruction cache."),
    ("branch_resolving", "It branches often: use fewer branches, unroll loops."),
    ("drain", "It waits for its last stores: write less, or write contiguous addresses."),
    ("barrier", "Its threads wait for each other: use smaller blocks, fewer synchronizations."),
    ("sleep", "It calls an explicit sleep: find what it waits for."),
    ("", "See the device's profiler guide for this reason."),
)


def stall_reasons(context: RuleContext) -> Iterator[Finding]:
    """Stall reasons of hot kernels, from samples of their instructions.

    Silent without such samples (of NVIDIA's devices by `stepscope run --contexts --stalls`, of AMD's by
    rocprofv3, if the device and the driver allow it), for kernels below 10 % of the device time, and if the
    most frequent reason makes up less than 30 % of the samples of a kernel or is no stall (`selected`).

    A kernel counts over all contexts that launch it.

    Source: DEEPCONTEXT section 4.3, "Fine-grained Stall Analysis"; section 6.7.
    """
    tree = context.contexts
    if tree is None or not tree.has("stalls") or not tree.has("device_ns"):
        return
    for kernel, nodes, part_ns in _hot_kernels(tree):
        reasons = _reasons(tree, nodes)
        reason, share = next(iter(reasons.items()), ("", 0.0))
        if share < LEAST or reason in BUSY:
            continue
        shares = ", ".join(f"{name} {part:.0%}" for name, part in list(reasons.items())[:TOP])
        advice = next(text for part, text in ADVICE if part in reason.lower())
        if advice == _WAITS and kind_of(kernel) in PRODUCT_KINDS:
            advice = _WAITING_PRODUCT  # nothing is fused with a kernel of a library that multiplies
        bound = context.measures.per_step(part_ns) * share
        longest = nodes[np.argsort(-tree.own("device_ns").sum[nodes], kind="stable")[:TOP]]
        yield context.finding_in_tree(
            f"{short_kernel(kernel, 50)} stalls mainly on {reason}. By samples: {shares}.",
            advice,
            np.append(_hottest(tree, nodes, reason), longest),
            context.gains.bound(bound, "at most the stalled share of its time"),
        )


def _hot_kernels(tree: ContextTree) -> Iterator[tuple[str, Rows, float]]:
    """Names, nodes and device time (ns) of kernels with enough of the device time, longest first."""
    time = tree.own("device_ns").sum
    nodes = np.flatnonzero(time > 0)
    labels = Text.of(tree.label(node) for node in nodes.tolist())
    total = np.bincount(labels.codes, time[nodes], len(labels.values))
    for code in np.argsort(-total, kind="stable").tolist():
        if total[code] < HOT * time.sum():
            return
        yield labels.values[code], nodes[labels.codes == code], float(total[code])


def _reasons(tree: ContextTree, nodes: Rows) -> dict[str, float]:
    stalls = tree.inclusive("stalls").sum
    total: dict[str, float] = {}
    for node in _sampled(tree, nodes):
        total[tree.label(node)] = total.get(tree.label(node), 0.0) + float(stalls[node])
    whole = sum(total.values())
    return {name: total[name] / whole for name in sorted(total, key=lambda name: -total[name])}


def _hottest(tree: ContextTree, nodes: Rows, reason: str) -> Rows:
    """The contexts with most samples of a reason in a kernel: instructions, or the reason."""
    below = [tree.subtree(node) for node in _sampled(tree, nodes) if tree.label(node) == reason]
    inside = np.concatenate(below)
    stalls = tree.own("stalls").sum[inside]
    most = np.argsort(-stalls, kind="stable")[:TOP]
    return inside[most[stalls[most] > 0]]


def _sampled(tree: ContextTree, nodes: Rows) -> list[int]:
    """The reasons below a kernel's contexts."""
    stalls = tree.inclusive("stalls").sum
    return [below for node in nodes.tolist() for below in tree.children(node).tolist() if stalls[below] > 0]
