"""The table `steps`: its ranks and steps, how long they take, which are typical."""

from collections.abc import Sequence

import numpy as np

from stepscope.base.arrays import IntArray, Mask, Rows, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.links.launches import device_work, launched_before_recording, of_rank, on_host
from stepscope.facts.annotate.range_names import is_step
from stepscope.trace.nesting import outermost
from stepscope.trace.recorded_steps import milliseconds
from stepscope.trace.sets import one_of
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

WARM_UP_RATIO = 3  # medians: a first step that takes longer warms up
_STILL_WARM = 1.2  # of the median of those after it: a step after the first that still warms up
_LIKE_FIRST = 0.25  # of its length: a later step that differs by less is of its kind; chosen
ITERATION = "iteration"  # evidence of a step that is an iteration of a server
_MIN_STEPS = 3  # of which a median shows what is typical


def steady_steps(steps: Table) -> Mask:
    """Steps that count for means: all but a rank's first if it takes over three medians.

    After such a step shorter and shorter ones are left out until they take as long as the later ones.
    With fewer than three steps none is excluded: nothing shows which one is typical. Nor is one like
    which others follow, nor an iteration of a server: one with a long prompt takes longer than those
    after it. A step takes what it delays the end of the work: calls of the first may only fill a queue.
    """
    length = steps["end_ns"] - steps["start_ns"]
    keep = np.ones(len(steps), np.bool_)
    completed = np.maximum(steps["end_ns"], steps["device_end_ns"])
    for rank in np.unique(steps["rank"][~steps.text("evidence").mask(ITERATION)]):
        of_rank = np.flatnonzero(steps["rank"] == rank)
        first = length[of_rank[0]]
        done = np.diff(completed[of_rank])
        typical = max(np.median(length[of_rank]), np.median(done)) if len(done) else 0
        if len(of_rank) >= _MIN_STEPS and first > WARM_UP_RATIO * typical and not _recurs(length[of_rank]):
            keep[of_rank[: _warming_up(length[of_rank])]] = False
    return keep


def _recurs(length: Times) -> bool:
    """Whether a step as long as the first comes again, apart from it: both do rare work, such as rollouts."""
    like_first = np.abs(length / length[0] - 1) <= _LIKE_FIRST
    return bool((like_first[1:] & (length[:-1] < length[1:] / WARM_UP_RATIO)).any())


def _warming_up(length: Times) -> int:
    """How many of the first steps warm up, if the first does; at least three do not."""
    count = 1
    while count + _MIN_STEPS < len(length) and (
        length[count - 1] >= length[count] > _STILL_WARM * np.median(length[count + 1 :])
    ):
        count += 1
    return count


def one_of_steps(trace: Trace, rank: int, step: int | None) -> str:
    """One of several steps and how it differs from all of them; empty for all, or if it is the only one."""
    steps = trace["steps"].take(trace["steps"]["rank"] == rank)
    length, chosen = step_lengths(steps), steps["step"] == step
    if len(steps) == 1 or not chosen.any():
        return ""
    share = float(length[chosen].mean() / length.mean()) - 1
    longer = f"{abs(share):.0%} {'longer' if share > 0 else 'shorter'} than the mean of {len(steps)} steps"
    return f"step {step} alone, which is {longer}"


def step_marks(trace: Trace) -> Mask:
    """Events that mark the steps: the profiler's, and ranges that are the steps, bool, shape (events,)."""
    events, steps = trace.events, trace["steps"]
    begins = steps["start_ns"][steps.text("evidence").mask("range", "pattern")]
    ranges = np.isin(events["start_ns"], begins) & events.text("category").mask("annotation")
    return outermost(events["parent"], ranges & on_host(trace)) | events.text("name").where(is_step)


def require_steps(trace: Trace, instead: str = "") -> None:
    """Raise an error for a trace without steps that says why it has none.

    Args:
        instead: what to do with the contexts of a whole run; the default is to print them.

    Raises:
        TraceError: if the trace has no step.
    """
    if len(trace["steps"]):
        return
    source = trace.metadata.source
    why = trace.metadata.capture.get("message") or "no event has a duration"
    why = "; ".join([why, *capture_notes(trace, trace.metadata.ranks[0])])
    if len(trace["contexts"]):
        instead = instead or f"see `stepscope contexts {source}`"
        why = f"the file has the contexts of a whole run; {instead}"
    raise TraceError(f"{source}: expected at least one recorded step, found none: {why}")


def ranks_with_steps(trace: Trace) -> tuple[int, ...]:
    """The ranks that have steps; all ranks if none has (a rank that failed early has none)."""
    found = set(trace["steps"]["rank"].tolist())
    return tuple(rank for rank in trace.metadata.ranks if rank in found) or trace.metadata.ranks


def step_lengths(steps: Table) -> Times:
    """The length of each step: the length of its window, int64, ns, shape (steps,)."""
    return steps["window_end_ns"] - steps["window_start_ns"]


def windows_of(steps: Table) -> tuple[Times, Times]:
    """Start and end of the window of each step, int64, ns, shape (steps,) each."""
    return steps["window_start_ns"], steps["window_end_ns"]


def events_in_steps(trace: Trace, rank: int, steps: IntArray) -> Mask:
    """The events of a rank's steps of these numbers, those on devices included, bool, shape (events,)."""
    return of_rank(trace, rank) & one_of(trace.events["step"], steps.tolist())


def mean_device_ms(steps: Table) -> tuple[float | None, float | None]:
    """Mean busy and idle time of the busiest device per step, ms; None where no device works."""
    busy, idle = steps["device_busy_ns"], steps["device_idle_ns"]
    if not (busy.any() or idle.any()):
        return None, None
    return float(busy.mean()) / 1e6, float(idle.mean()) / 1e6


def missing_steps(trace: Trace, rank: int, first: int | None, last: int | None = None) -> str:
    """The message for a rank and step, any for None, or steps in a row, that a trace does not have."""
    if first is None or rank not in ranks_with_steps(trace):
        return no_such_rank(trace, rank)
    wanted = f"step {first}" if last in (None, first) else f"steps {first} to {last} in a row"
    known = trace["steps"]["step"][trace["steps"]["rank"] == rank].tolist()
    return f"rank {rank} has no {wanted}; it has {number_list(known)}"


def no_such_rank(trace: Trace, rank: int) -> str:
    """The message for a rank that has no steps.

    Example: `there is no rank 9; the trace has 0 to 7`.
    """
    return f"there is no rank {rank}; the trace has {number_list(ranks_with_steps(trace))}"


def number_list(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, runs of three and more by their ends: `0, 1, 5 to 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


COVERS_LITTLE = "steps_cover_little"


def longest_alone(steps: Table) -> str:
    """Which of several steps takes most of the time, in words; empty if none does."""
    length = step_lengths(steps)
    if len(length) < _MIN_STEPS or 2 * length.max() <= length.sum():
        return ""
    share = length.max() / length.sum()
    return f"step {steps['step'][length.argmax()]} alone takes {share:.0%} of the recorded time"


def coverage_note(trace: Trace, rank: int) -> str:
    """Why the whole recording of a rank is shown as one step; empty if it is not."""
    found = messages(trace, rank, COVERS_LITTLE)
    if not found and trace["steps"].text("evidence").mask("whole_trace").any():
        found = messages(trace, rank, "steps_inferred")
    return next(iter(found), "")


def capture_notes(trace: Trace, rank: int) -> list[str]:
    """What the recorder warned of in the capture of a rank."""
    return messages(trace, rank, "capture")


def messages(trace: Trace, rank: int | None, *codes: str) -> list[str]:
    """The warnings with some codes of a rank, or of any."""
    rows = trace["warnings"].rows() if len(trace["warnings"]) else ()
    return [row["message"] for row in rows if row["code"] in codes and rank in (None, row["rank"])]


def covered_share(trace: Trace, step: Rows, aside: Mask | None = None) -> float:
    """The share of the work that belongs to steps: of device time, else of time in operators.

    1 if there is no such work, or if it is not known to which step it belongs: compiled work that
    runs on the CPU after its call has returned. `step` is the index of each event's step, or -1,
    (events,); what is `aside` of the training counts in steps only.
    """
    events = trace.events
    inside = np.asarray(step) >= 0
    work = device_work(trace) & ~launched_before_recording(trace)
    duration = events["duration_ns"]
    if not duration[work].any():
        if (on_host(trace) & (events["scope"] >= 0)).any():
            return 1.0
        work = on_host(trace) & events.text("category").mask("cpu_op", "runtime", "communication")
        duration = events["self_ns"]
    covered = int(duration[work & inside].sum())
    if covered and aside is not None:
        work &= inside | ~aside
    whole = int(duration[work].sum())
    return covered / whole if whole else 1.0


def warn_little(trace: Trace, lengths: Times, share: float) -> Trace:
    """The trace with a warning that the steps found do not stand for it."""
    steps = "the step found takes" if len(lengths) == 1 else f"the {len(lengths)} steps found take"
    message = (
        f"{steps} {milliseconds(lengths.sum())} and {'holds' if len(lengths) == 1 else 'hold'} "
        f"{share:.0%} of the trace's work, so the whole trace is shown as one step"
    )
    return trace.with_warnings([(COVERS_LITTLE, message, 1)])
