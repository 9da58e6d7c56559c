"""`cpu_latency`: the CPU takes longer to launch work than the device to do it (4.3, 5)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Rows, Subject
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import STAGES

ADVICE = (
    "Launch less and larger work: torch.compile (mode='reduce-overhead' replays CUDA graphs), a "
    "larger batch, a fused optimizer; keep Python out of the inner loop."
)
LEAST = 0.15
RATIO = 2
MOSTLY = 0.5
LEAST_PYTHON = 0.60


def cpu_latency(subject: Subject) -> Iterator[Finding]:
    """Frames whose CPU time far exceeds their device time: the device idles until work is launched.

    Without a device: time in which the training loop runs no operator, but Python. In a tree of
    contexts: operators whose calls take twice as long as the work that they launch.

    Silent where the device idles that way for less than 15 % of the step, or less than 60 % of it
    is Python. Left out are gaps of 50 ms and more, those of 100 µs and more after a launch, which
    wait for another stream, and calls of the runtime of 1 ms and more, which allocate or load
    kernels.

    Source: DEEPCONTEXT section 4.3, "CPU Latency Analysis".
    """
    if not subject.has_device:
        yield from _python(subject)
    elif subject.unfolded:
        yield from _frames(subject)
    else:
        yield from _launching(subject)


def _frames(subject: Subject) -> Iterator[Finding]:
    """Of a tree: operators whose calls take twice as long as the work that they launch."""
    calls = subject.outermost(subject.find(category="cpu_op"))
    cpu, device = subject.ms(calls), subject.ms(subject.find(on_device=True))
    slower = subject.events["duration_ns"][calls] > RATIO * subject.spent_ns(calls)
    if cpu <= RATIO * device or not slower.any():
        return
    worst = calls[slower][subject.events["duration_ns"][calls[slower]].argmax()]
    yield subject.finding(
        f"The CPU takes {cpu:.3g} ms a step to call for what the device does in {device:.3g} ms, "
        f"most of all in {subject.name(worst)}{subject.place(int(worst))}.",
        ADVICE,
        calls[slower],
        subject.bound(cpu - device, "at most the CPU's time beyond the device's"),
    )


def _launching(subject: Subject) -> Iterator[Finding]:
    gaps = subject.launch_gaps()
    idle = gaps.total() / 1e6 / subject.count
    rows, gap_ns = _during(subject, gaps)
    if idle < LEAST * subject.step_ms or not len(rows):
        return
    spent = np.bincount(subject.events["stage"][rows] + 1, gap_ns)
    worst = ("no stage", *STAGES)[int(spent.argmax())].replace("_", " ")
    yield subject.finding(
        f"For {idle / subject.step_ms:.0%} of the step the device idles because the CPU is slower "
        f"at launching work than the device at doing it, most of all in {worst}.",
        ADVICE,
        rows,
        subject.whatif("cuda_graphs") or subject.bound(idle, "at most the time that it idles so"),
    )


def _during(subject: Subject, gaps: Intervals) -> tuple[Rows, NDArray[np.int64]]:
    """The outermost operators in which the device idles, mostly if any, and how long in each."""
    rows = subject.outermost(subject.find(category="cpu_op"))
    start, duration = subject.events["start_ns"][rows], subject.events["duration_ns"][rows]
    inside = gaps.within(start, start + duration)
    mostly = inside > MOSTLY * duration
    chosen = mostly if mostly.any() else inside > 0
    return rows[chosen], inside[chosen]


def _python(subject: Subject) -> Iterator[Finding]:
    """Time in which no thread runs an operator, by the range or frame that the loop is in."""
    gaps = subject.quiet().minus(_backward(subject))
    start, end = subject.steps["start_ns"], subject.steps["end_ns"]
    share = float(np.median(gaps.within(start, end) / np.maximum(end - start, 1)))
    rows, spent = _innermost(subject, gaps)
    if share < LEAST_PYTHON or not len(rows):
        return
    names = subject.events["name"][rows]
    worst = subject.events.text("name").values[int(np.bincount(names, spent).argmax())]
    where = "the loop itself" if worst.startswith("ProfilerStep") else worst
    yield subject.finding(
        f"For {share:.0%} of the step the training loop runs Python and no operator, most of all "
        f"in {where}.",
        "Replace loops over elements by operators on whole tensors, and move bookkeeping out of "
        "the step or into the data loader.",
        rows,
        subject.bound(share * subject.step_ms, "at most the time between operators"),
    )


def _backward(subject: Subject) -> Intervals:
    """When the loop is in backward, which runs no Python: whoever works there was not recorded."""
    runs = subject.trace["stages"]
    mine = runs.text("stage").mask("backward") & (runs["rank"] == subject.rank)
    return Intervals(runs["start_ns"][mine], runs["end_ns"][mine])


def _innermost(subject: Subject, gaps: Intervals) -> tuple[Rows, NDArray[np.int64]]:
    """Ranges and frames of the training loop's thread, and how much of the gaps each has itself."""
    events = subject.events
    rows = subject.find(category=("annotation", "python", "cpu_op"), on_device=False)
    rows = rows[(events["track"][rows] == subject.loop_track) & subject.is_range(rows)]
    start = events["start_ns"][rows]
    inside = gaps.within(start, start + events["duration_ns"][rows])
    around = inherit(events["parent"], np.where(np.isin(events["id"], rows), events["id"], -1))
    outer = np.where(events["parent"][rows] >= 0, around[events["parent"][rows]], -1)
    taken = np.bincount(outer[outer >= 0], inside[outer >= 0], len(events))[rows]
    own = inside - taken.astype(np.int64)
    return rows[own > 0], own[own > 0]
