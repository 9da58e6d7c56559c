"""Compiled operations of a run's windows, below the calls of the recorded tree.

While a window was open, each call of a compiled function had a mark with the number of its context
(`stepscope.context 12`). What was traced and what ran below the mark goes below that context.
"""

import re
from collections.abc import Sequence

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.facts.contexts.build_tree import WINDOWS, build_contexts, metric_rows
from stepscope.facts.contexts.metrics import METRICS, SampleStats
from stepscope.facts.contexts.tree import ContextTree
from stepscope.trace.concat import stacked
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

_MARK = re.compile(r"^stepscope\.context (\d{1,9})$")
_WORK = ("operator", "kernel", "memcpy", "memset", "communication")
_WORTH_SAYING = 0.01  # least share of the time that no call is known of


def with_windows(trace: Trace, windows: Sequence[Trace], recorded_s: float, elapsed_s: float) -> Trace:
    """The trace of a capture of contexts, a recorded tree, with the compiled operations of its windows.

    These contexts have the metric `compiled_ns`: of the recorded calls alone, and not scaled. A
    warning says how many these are. The windows took `recorded_s` seconds of the run's `elapsed_s`.
    """
    recorded = trace["contexts"]
    nodes, metrics, linked, total = [recorded], [trace["context_metrics"]], 0.0, 0.0
    for window in windows:
        tree = build_contexts(window)
        work = (_time(tree).count > 0) & tree.nodes.text("kind").mask(*_WORK)
        own = _durations(tree, work)
        below, number = _below_marks(tree, work, recorded, sum(map(len, nodes)))
        nodes.append(below)
        rows = np.flatnonzero((number >= 0) & (own.count > 0))
        metrics.append(metric_rows([(METRICS["compiled_ns"], own, rows)], number[rows]))
        linked, total = linked + float(own.sum[number >= 0].sum()), total + float(own.sum.sum())
    marks = (window.events.text("name").where(lambda name: bool(_MARK.match(name))) for window in windows)
    calls = sum(int(mask.sum()) for mask in marks)
    unlinked = 1 - linked / total if total else 0.0  # began before its window, or its call is unknown
    known = f"; {unlinked:.0%} of their time has no known call" if unlinked >= _WORTH_SAYING else ""
    basis = (
        f"compiled operations are those of {calls:,} of {_calls(trace):,} calls of compiled functions, "
        f"recorded during {recorded_s:.1f} s of {elapsed_s:.1f} s (metric compiled, not scaled up{known})"
    )
    return trace.with_table(stacked(nodes)).with_table(stacked(metrics)).with_warnings([(WINDOWS, basis, 1)])


def _target(tree: ContextTree, size: int) -> Ids:
    """The recorded context that each node is a mark of, -1 for none, int64, shape (nodes,)."""
    names = tree.nodes.text("name")
    numbers = [int(match[1]) if match else -1 for match in map(_MARK.match, names.values)]
    target = np.array([*numbers, -1], np.int64)[names.codes]
    return np.where(target < size, target, -1)


def _time(tree: ContextTree) -> SampleStats:
    """The time of each node itself, on threads of the host and on devices."""
    parts = [tree.metrics[name] for name in ("cpu_ns", "device_ns") if name in tree.metrics]
    here = np.tile(np.arange(len(tree)), max(len(parts), 1))
    return SampleStats.joined(parts or [SampleStats.empty(len(tree))]).grouped(here, len(tree))


def _durations(tree: ContextTree, work: Mask) -> SampleStats:
    """The time of each operation, with what the runtime does in it (it meets its threads)."""
    time, owner = _time(tree), tree.nearest(work)
    inside = np.flatnonzero((owner >= 0) & ~work & (time.count > 0))
    own = time.where(work)
    total = own.sum + np.bincount(owner[inside], time.sum[inside], len(tree))
    is_exact = total == own.sum
    low, high, squares = (np.where(is_exact, part, np.nan) for part in (own.min, own.max, own.squares))
    return SampleStats(own.count, total, low, high, squares)


def _below_marks(tree: ContextTree, work: Mask, recorded: Table, size: int) -> tuple[Table, Ids]:
    """The nodes to add below `size` recorded contexts, and the new number of each node, -1 for none."""
    target = _target(tree, len(recorded))
    mark = tree.nearest(target >= 0)
    is_host = tree.nodes.text("kind").mask("runtime", "annotation", "sync") & (_time(tree).count > 0)
    kept = (mark >= 0) & (mark != np.arange(len(tree))) & ~is_host
    kept &= tree.leads_to(work)
    number = np.where(kept, size + np.cumsum(kept) - 1, -1)
    around = tree.nearest(kept | (target >= 0))[tree.parent]
    above = np.where(kept[around], number[around], target[around])
    rows = np.flatnonzero(kept)
    return tree.nodes.take(rows).with_columns(parent=above[rows]), number


def _calls(trace: Trace) -> int:
    """How many calls of compiled functions the whole run made."""
    metrics, names = trace["context_metrics"], trace["contexts"].text("name")
    rows = metrics.take(metrics.text("metric").mask("cpu_ns"))
    is_call = names.where(lambda name: name.startswith("jit("))[rows["context"]]
    return int(rows["count"][is_call].sum())
