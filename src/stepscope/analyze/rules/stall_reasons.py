"""`stall_reasons`: why the instructions of hot kernels stall (DEEPCONTEXT 4.3, 4; 6.7)."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.kernel_names import short_kernel
from stepscope.facts.contexts import ContextTree

HOT = 0.10  # of the device time
LEAST = 0.30  # of the samples of a kernel
TOP = 3  # reasons that the sentence names
# A warp that issues, or that is ready while another one issues, waits for nothing.
BUSY = ("selected", "not_selected")
_LOADS = "Each block loads constants again: let blocks do more work, or fuse the kernel with its neighbors."
_WAITS = "It waits for memory: fuse it with its neighbors, read less (16 bits), or read contiguous addresses."
# The advice of the vendors' documents, by a part of the reason's name; "" is any other.
ADVICE = (
    ("imc_miss", _LOADS),
    ("constant", _LOADS),
    (
        "math",
        "Use instructions that do more at once (vector loads and conversions, fewer "
        "conversions between types).",
    ),
    ("long_scoreboard", _WAITS),
    ("lg_throttle", "It makes more memory requests than fit: wider loads (vector types)."),
    ("memory", _WAITS),
    (
        "short_scoreboard",
        "It waits for shared memory or special functions (exp, division): "
        "avoid bank conflicts, keep more in registers.",
    ),
    (
        "mio_throttle",
        "It saturates shared memory or special functions: use wider accesses, keep more in registers.",
    ),
    (
        "no_instruction",
        "It waits for instructions: it is too short to fill the device, or its code "
        "exceeds the instruction cache.",
    ),
    ("branch_resolving", "It branches often: use fewer branches, unroll loops."),
    ("drain", "It waits for its last stores: write less, or write contiguous addresses."),
    ("barrier", "Its threads wait for each other: use smaller blocks, fewer synchronizations."),
    ("sleep", "It calls an explicit sleep: find what it waits for."),
    ("", "See the device's profiler guide for this reason."),
)


def stall_reasons(context: RuleContext) -> Iterator[Finding]:
    """Stall reasons of hot kernels, from samples of their instructions.

    Silent without such samples (`stepscope run --contexts --stalls` records them if the device and
    the driver allow it), for kernels below 10 % of the device time, and if the most frequent reason
    makes up less than 30 % of the samples of a kernel or is no stall (`selected`).

    Source: DEEPCONTEXT section 4.3, "Fine-grained Stall Analysis"; section 6.7.
    """
    tree = context.contexts
    if tree is None or not tree.has("stalls") or not tree.has("device_ns"):
        return
    time = tree.own("device_ns").sum
    for kernel in np.flatnonzero(time >= HOT * time.sum()).tolist():
        reasons = _reasons(tree, kernel)
        reason, share = next(iter(reasons.items()), ("", 0.0))
        if share < LEAST or reason in BUSY:
            continue
        shares = ", ".join(f"{name} {part:.0%}" for name, part in list(reasons.items())[:TOP])
        bound = float(time[kernel]) / 1e6 / context.step_count * share
        yield context.finding_in_tree(
            f"{short_kernel(tree.label(kernel), 50)} stalls mainly on {reason}: {shares} of its samples.",
            next(text for part, text in ADVICE if part in reason.lower()),
            np.append(_hottest(tree, kernel, reason), kernel),
            context.gains.bound(bound, "at most the stalled share of its time"),
        )


def _reasons(tree: ContextTree, kernel: int) -> dict[str, float]:
    stalls = tree.inclusive("stalls").sum
    total: dict[str, float] = {}
    for node in _sampled(tree, kernel):
        total[tree.label(node)] = total.get(tree.label(node), 0.0) + float(stalls[node])
    whole = sum(total.values())
    return {name: total[name] / whole for name in sorted(total, key=lambda one: -total[one])}


def _hottest(tree: ContextTree, kernel: int, reason: str) -> np.ndarray:
    """The contexts with most samples of a reason in a kernel: instructions, or the reason."""
    below = [tree.subtree(node) for node in _sampled(tree, kernel) if tree.label(node) == reason]
    nodes = np.concatenate(below)
    stalls = tree.own("stalls").sum[nodes]
    most = np.argsort(-stalls, kind="stable")[:TOP]
    return nodes[most[stalls[most] > 0]]


def _sampled(tree: ContextTree, kernel: int) -> list[int]:
    stalls = tree.inclusive("stalls").sum
    return [node for node in tree.children(kernel).tolist() if stalls[node] > 0]
