"""`cpu_latency`: the CPU takes longer to launch work than the device to do it (4.3, 5)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze.finding import Finding
from stepscope.analyze.places import plain_name
from stepscope.analyze.stretches import Stretches, share, stretches
from stepscope.analyze.subject import Rows, Subject
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import STAGES

ADVICE = (
    "Launch less and larger work: torch.compile (mode='reduce-overhead' replays CUDA graphs), a "
    "larger batch, a fused optimizer; keep Python out of the inner loop."
)
JAX = (
    "Launch less and larger work: the whole step under one jax.jit, several steps in one call "
    "(jax.lax.scan over batches), a larger batch; keep Python out of the inner loop."
)
LEAST = 0.15
RATIO = 2
MOSTLY = 0.5
LEAST_PYTHON = 0.60
LEAST_LONG = 0.10
PYTHON = (
    "Replace loops over elements by operators on whole tensors, log and save every many steps or "
    "in another thread, and leave what prepares data to the data loader's workers."
)
PYTHON_OF_JAX = (
    "Put loops over elements under jax.jit (jax.vmap, jax.lax.scan), log and save every many steps "
    "or in another thread, and prepare batches in another thread or process."
)
NAMES = "`stepscope run --stack` names the functions."
NAMES_OF_JAX = "Recorded with python_tracer_level=1 the trace names the functions."


def cpu_latency(subject: Subject) -> Iterator[Finding]:
    """Frames whose CPU time far exceeds their device time: the device idles until work is launched.

    Without a device: time in which the training loop runs no operator, but Python. In a tree of
    contexts: operators whose calls take twice as long as the work that they launch.

    Silent where the device idles that way for less than 15 % of the step. Without a device where
    less than 60 % of the step is Python, and stretches of 1 ms and more that come back at the same
    place of each step make less than 10 %. Left out are gaps of 50 ms and more, those of 100 µs and
    more after a launch, which wait for another stream, and calls of the runtime of 1 ms and more,
    which allocate or load kernels.

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
        subject.in_words(ADVICE, jax=JAX),
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
        subject.in_words(ADVICE, jax=JAX),
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
    gaps = subject.quiet()
    found = None if subject.unfolded else stretches(subject, gaps)
    if share(subject, gaps) < LEAST_PYTHON:
        if found is None or share(subject, found.spans) < LEAST_LONG:
            return
        gaps = found.spans
    rows, spent = _innermost(subject, gaps)
    if not len(rows):
        return
    part = share(subject, gaps)
    frames = len(subject.find(category="python", on_device=False)) > 0
    advice = subject.in_words(PYTHON, jax=PYTHON_OF_JAX)
    yield subject.finding(
        f"For {part:.0%} of the step the training loop runs Python and no operator, most of all "
        f"in {_name(subject, rows, spent)}{_between(subject, found)}.",
        advice if frames else f"{advice} {subject.in_words(NAMES, jax=NAMES_OF_JAX)}",
        rows,
        subject.bound(part * subject.step_ms, "at most the time between operators"),
    )


def _name(subject: Subject, rows: Rows, spent: NDArray[np.int64]) -> str:
    """The range or frame with most of the time, and who of the user's called it."""
    names = subject.events["name"][rows]
    worst = int(np.bincount(names, spent).argmax())
    name = subject.events.text("name").values[worst]
    if name.startswith("ProfilerStep"):
        return "the loop itself"
    row = int(rows[names == worst][0])
    caller = subject.place(row).removeprefix(" in ")
    is_frame = subject.events.text("category")[row] == "python"
    if is_frame and caller and not caller.endswith(name.rpartition(" ")[2]):
        return f"{name}, called by {caller}"
    return plain_name(name)


def _between(subject: Subject, found: Stretches | None) -> str:
    """How long at a stretch, and between which events; empty where nothing lasts."""
    if found is None:
        return ""
    begin = subject.trace.metadata.capture.get("step_ends_after") or "the beginning of the step"
    before = plain_name(subject.name(found.before)) if found.before >= 0 else begin
    after = plain_name(subject.name(found.after)) if found.after >= 0 else "its end"
    return f": {found.longest_ms:.3g} ms at a stretch between {before} and {after}"


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
