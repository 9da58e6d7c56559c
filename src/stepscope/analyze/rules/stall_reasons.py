"""`stall_reasons`: what the instructions of hot kernels wait for (DEEPCONTEXT 4.3, 4; 6.7)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject
from stepscope.annotate.kernel_names import short_kernel
from stepscope.contexts import ContextTree

HOT = 0.10
LEAST = 0.30
TOP = 3
# A warp that issues, or that another one was preferred to, waits for nothing.
BUSY = ("selected", "not_selected")
# What the vendors' documents say to do, by a part of the reason's name; "" is any other.
ADVICE = (
    ("imc_miss", "Constants are loaded anew by each block: let blocks do more, or fuse the kernel "
     "into its neighbours."),
    ("constant", "Constants are loaded anew by each block: let blocks do more, or fuse the kernel "
     "into its neighbours."),
    ("math", "Use instructions that do more at once (vector loads and conversions, fewer "
     "conversions between types)."),
    ("long_scoreboard", "It waits for memory: fuse it with its neighbours, read less (16 bits), or "
     "in the order in which memory lies."),
    ("lg_throttle", "It makes more memory requests than fit: wider loads (vector types)."),
    ("memory", "It waits for memory: fuse it with its neighbours, read less (16 bits), or in the "
     "order in which memory lies."),
    ("short_scoreboard", "It waits for shared memory or for special functions (exp, division): "
     "avoid bank conflicts, do more in registers."),
    ("mio_throttle", "It uses shared memory or special functions more often than they can answer: "
     "wider accesses, do more in registers."),
    ("no_instruction", "It waits for its own instructions: it is too short to fill the device, or "
     "jumps through more code than the cache holds."),
    ("branch_resolving", "It jumps often: fewer branches, unrolled loops."),
    ("drain", "It waits for its last stores: write less, or in the order in which memory lies."),
    ("barrier", "Its threads wait for each other: smaller blocks, fewer synchronisations."),
    ("sleep", "It sleeps on purpose: see what it waits for."),
    ("", "See the device's profiler guide for this reason."),
)  # fmt: skip


def stall_reasons(subject: Subject) -> Iterator[Finding]:
    """Why the instructions of hot kernels stall, by samples of the device's instructions.

    Silent without such samples (they come with `stepscope run --contexts --stalls` where the device
    and the driver allow it), for kernels below 10 % of the device time, and where the most frequent
    of its reasons makes less than 30 % of a kernel's samples or is none (`selected`).

    Source: DEEPCONTEXT section 4.3, "Fine-grained Stall Analysis"; section 6.7.
    """
    tree = subject.contexts
    if tree is None or not tree.has("stalls") or not tree.has("device_ns"):
        return
    time = tree.own("device_ns").sum
    for kernel in np.flatnonzero(time >= HOT * time.sum()).tolist():
        reasons = _reasons(tree, kernel)
        reason, share = next(iter(reasons.items()), ("", 0.0))
        if share < LEAST or reason in BUSY:
            continue
        told = ", ".join(f"{name} {part:.0%}" for name, part in list(reasons.items())[:TOP])
        bound = float(time[kernel]) / 1e6 / subject.count * share
        yield subject.finding_in_tree(
            f"{short_kernel(tree.label(kernel), 50)} is mainly stalled by {reason}: {told} of its "
            "samples.",
            next(text for part, text in ADVICE if part in reason.lower()),
            np.append(_hottest(tree, kernel, reason), kernel),
            subject.bound(bound, "at most the share of its time that it is stalled so"),
        )


def _reasons(tree: ContextTree, kernel: int) -> dict[str, float]:
    """The shares of the reasons in a kernel's samples, the most frequent first."""
    stalls = tree.inclusive("stalls").sum
    total: dict[str, float] = {}
    for node in _sampled(tree, kernel):
        total[tree.label(node)] = total.get(tree.label(node), 0.0) + float(stalls[node])
    whole = sum(total.values())
    return {name: total[name] / whole for name in sorted(total, key=lambda one: -total[one])}


def _hottest(tree: ContextTree, kernel: int, reason: str) -> np.ndarray:
    """The contexts with most samples that a kernel has of a reason: instructions, or the reason."""
    below = [tree.subtree(node) for node in _sampled(tree, kernel) if tree.label(node) == reason]
    nodes = np.concatenate(below)
    stalls = tree.own("stalls").sum[nodes]
    most = np.argsort(-stalls, kind="stable")[:TOP]
    return nodes[most[stalls[most] > 0]]


def _sampled(tree: ContextTree, kernel: int) -> list[int]:
    """The reasons directly below a kernel that have samples."""
    stalls = tree.inclusive("stalls").sum
    return [node for node in tree.children(kernel).tolist() if stalls[node] > 0]
