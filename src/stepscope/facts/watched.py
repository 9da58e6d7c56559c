"""The bill of a watched run: what it lost time to, and its slow steps with their causes.

Where others had the core so often that this explains a stretch, it is put down to them.
"""

from collections.abc import Sequence
from functools import reduce
from itertools import compress
from pathlib import PurePath

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Floats, Mask
from stepscope.base.watch_format import LOADER_WORKER, PARTS
from stepscope.facts.slow_parts import BLOCK, FEWEST, SHORTEST, SlowParts, Span, runs_of, slow_parts
from stepscope.facts.summary.numbers import duration, percent, rounded
from stepscope.read.watched_run import SampledLine, WatchedPlace, WatchedRun, WatchedRunFacts

_HALF = 0.5  # of what steps were longer by: a cause that explains less is not named
_MOSTLY = 0.8  # of the steps; chosen: of four equal ranks each is the last in a quarter
_OTHERS = "others had the core of the training thread"
_THREADS = "other threads of the process had the core of the training thread"
# Measured parts of steps that are losses, the more specific first.
CAUSES = {
    "compile": "compilation",
    "gc": "garbage collection",
    "queued": _OTHERS,
    "collective": "waiting in collectives",
    "input": "waiting for data",
}
_OF_DEVICE = {  # before `cpu`: a thread that waits for its device computes
    "device_backward": "longer backward passes of the device",
    "device_optimizer": "longer optimizer steps of the device",
}
_EXPLANATIONS = {
    **CAUSES,
    **_OF_DEVICE,
    "cpu": "more work of the training thread",
    "threads": "more work of other threads of the process",
    "backward": "longer backward passes",
    "optimizer": "longer optimizer steps",
}
_WAITED = "the training thread waited"
_UNKNOWN = f"{_WAITED}, for what is not known"
_OF_CORE = (_EXPLANATIONS["cpu"], _EXPLANATIONS["threads"], _UNKNOWN)  # what a slower core does, too
_STARTS = "data loaders starting their workers"
# Of NVML's reasons for a low clock (nvml.h, nvmlClocksThrottleReason…).
_THROTTLING = {0x60: "thermal throttling", 0x04: "its power limit", 0x88: "the hardware slowed it down"}
# Losses by line, by the kind of a place.
_BY_LINE = {"evaluation": "evaluation", "checkpoint": "checkpoints", "compile": CAUSES["compile"]}
FIELDS = {cause: field for field, cause in (CAUSES | _BY_LINE).items()}
_MOST_LINES = 20  # in a bill
_ROUNDED = 1e-3  # of a sum; chosen: means are written with 24 bits, and what lines lack is more
_COMPILING = 2  # lines in slow steps; chosen: what makes a batch of another shape compiles as the step does
_MOST_NUMBERS = 1_000  # of steps of one cause; chosen: as many marks as there are pixels
_NAMED, _NOTABLE = 3, 0.02  # causes in a verdict, and what they cost of the run at least; chosen
_FEWEST_SAMPLES = 8  # chosen: of a line with half of them, the share is known to a third
_BUSY = 0.2  # of the CPU time; chosen: who waits as long for a core shares it with others
_SELDOM, _OFTEN = (
    0.2,
    0.3,
)  # of its time; chosen: a role that waits so little, and others so much, limits them
_SLICE_MS = 10.0  # ms; chosen: kernels, interrupts and neighbors made single steps longer by up to 8 ms
_NEIGHBOR = 1.7  # times; chosen: equal work took up to 1.6 times as long on an idle virtual machine
_MORE_WORK = 1.2  # times; chosen: equal lines differ by up to 1.07 over half of a run of such a machine
_LEAST_S = 0.25  # s; the changes of level of such a machine cost up to 0.12 s each where a line grew most
_FIFTHS, _GROWN = 5, 1.2  # parts, and times the first: of equal ones noise makes this order in 1 of 120
_UNEVEN = 2.0  # times; chosen: others take more of some threads' cores than of the training thread's


class Loss(msgspec.Struct, frozen=True):
    """Time that a run lost to one cause; losses of different causes may overlap."""

    cause: str
    lost_s: float
    share: float  # of the run
    where: str


class UnusualSteps(msgspec.Struct, frozen=True):
    """Steps from `first` to `last` that took unusually long."""

    first: int
    last: int
    count: int
    ratio: float  # of the usual step
    lost_s: float
    cause: str
    cause_ms: float  # a step, more than in other steps; 0 where the cause is not known
    where: str = ""  # the line that took most of that, by samples
    where_ms: float = 0.0  # a step, more than in other steps
    device: str = ""  # what the device reported in these steps and not in others
    numbers: list[int] = []  # of the first 1,000, where other steps lie between them
    grows_to: float = 0.0  # of the usual step, its last fifth, where each fifth is longer than the one before


class RoleTime(msgspec.Struct, frozen=True):
    """What processes of one role did from the first step on, by samples of their main threads."""

    role: str  # "training" is the process of the steps
    processes: int
    waits: float  # share of their time in which they slept
    waits_at: str  # the line where most of that was
    works_at: str  # the line that took most of the rest


class SlowRank(msgspec.Struct, frozen=True):
    """The rank that is the last in these steps, by so many ms a step over the median of the others."""

    rank: int
    first: int
    last: int
    lost_ms: float


class Bill(msgspec.Struct, frozen=True):
    """One run."""

    facts: WatchedRunFacts
    steps: int
    run_s: float  # from the start of the program to the last write of the file
    usual_ms: float  # the median of steps without their evaluation and checkpoints
    step_ms_over_time: list[float]  # means in tenths of the latest 248,000 steps
    losses: list[Loss]  # largest first
    slow: list[UnusualSteps]  # of the latest 248,000 steps, the slowest first
    lines: list[Loss]  # of the training thread, by samples: where it was in all steps, the longest first
    roles: list[RoleTime]  # if it has processes other than workers of data loaders; who waits least is first
    limiting_role: str = ""  # which all others wait for
    # what the run would take without its first losses, of which each is 2 % of it or more, at most three:
    # the least and the most, since those of one step may overlap
    without_first_s: tuple[float, float] = (0.0, 0.0)


def bill_of(run: WatchedRun) -> Bill:
    """What a run lost time to; also of one that has just begun."""
    slow, usual_ms = slow_steps(run)
    roles = _roles(run)
    run_s = 1e-9 * max(run.updated_unix_ns - run.facts.created_unix_ns, 1)
    tenths = [part for part in np.array_split(run.steps, 10) if len(part)]
    losses = _losses(run, run_s)
    return Bill(
        run.facts,
        int(run.totals["step"]),
        run_s,
        usual_ms,
        [1e-6 * float(part["wall_ns"].mean()) for part in tenths],
        losses,
        slow,
        _lines(run, run_s),
        roles,
        roles[0].role if roles and roles[0].waits < _SELDOM < _OFTEN < roles[1].waits else "",
        _without(run, run_s, losses),
    )


def sentence_of(slow: UnusualSteps) -> str:
    """What is known of slow steps."""
    lost = f", {duration(slow.lost_s)} in all" if slow.count > 1 else ""
    more = f" +{rounded(slow.cause_ms)} ms" if slow.cause_ms else ""
    line = f"; {slow.where} +{rounded(slow.where_ms, 2)} ms" if slow.where else ""
    device = f"; at the same time {slow.device}" if slow.device else ""
    return f"{_took(slow)}{lost}: {slow.cause}{more}{line}{device}"


def _took(slow: UnusualSteps) -> str:
    steps = f"steps {slow.first:,} to {slow.last:,}" if slow.count > 1 else f"step {slow.first:,}"
    some = f" ({slow.count:,} of them)" if slow.count < slow.last - slow.first + 1 else ""
    growing = f", growing to {rounded(slow.grows_to)} times" if slow.grows_to else ""
    return f"{steps}{some} took {rounded(slow.ratio)} times the usual{growing}"


def verdict_of(bill: Bill) -> str:
    """What a run lost most time to, and its most expensive slow steps."""
    if bill.facts.out_of_memory:
        return f"Out of memory on {bill.facts.out_of_memory}."
    notable = _notable(bill.losses)
    names = [", ".join(filter(None, [loss.cause, loss.where.partition(", ")[0]])) for loss in notable]
    lost = [f"{duration(loss.lost_s)} {name}" for loss, name in zip(notable, names, strict=True)]
    causes = "; ".join(lost) or f"no cause took {percent(_NOTABLE)}"
    slow = "Too few steps to judge them" if bill.steps < FEWEST else "No step was unusually slow"
    if bill.slow:
        slow = f"{_took(bill.slow[0])}: {bill.slow[0].cause}".capitalize()
    limits = f" Role {bill.limiting_role} limits the run: the others wait." if bill.limiting_role else ""
    return f"Of {duration(bill.run_s)}: {causes}. {slow}.{limits}"


def without_first(bill: Bill) -> str:
    """What the run would take without its first losses; empty if none is notable."""
    count = len(_notable(bill.losses))
    if not count:
        return ""
    times = " to ".join(dict.fromkeys(map(duration, bill.without_first_s)))
    first = f"first {count} losses" if count > 1 else "first loss"
    return f"Without the {first} the run would take {times} instead of {duration(bill.run_s)}."


def _notable(losses: Sequence[Loss]) -> list[Loss]:
    return [loss for loss in losses if loss.share >= _NOTABLE][:_NAMED]


def _without(run: WatchedRun, run_s: float, losses: Sequence[Loss]) -> tuple[float, float]:
    """Each step without what it lost to the first losses, which is all of it at most."""
    first, wall_ms = _notable(losses), 1e-6 * run.steps["wall_ns"]
    parts: dict[str, Floats] = {}
    for field in {FIELDS[loss.cause] for loss in first if loss.cause in FIELDS}:
        asked, known = (
            sum(one.lost_s for one in some if FIELDS.get(one.cause) == field) for some in (first, losses)
        )
        parts[field] = run.steps[field] * (asked / known)
    in_turn = sum((part for field, part in parts.items() if field in PARTS), 0 * wall_ms)
    others = [part for field, part in parts.items() if field not in PARTS]
    all_steps = 1e-9 * float(run.totals["wall_ns"]) / max(float(wall_ms.sum()), 1e-9)
    left_s = run_s - sum(loss.lost_s for loss in first if loss.cause not in FIELDS)
    most, least = in_turn + sum(others), np.maximum.reduce([in_turn, *others])
    most_s, least_s = (all_steps * float(np.minimum(part, wall_ms).sum()) for part in (most, least))
    return left_s - most_s, left_s - least_s


class LastMinute(msgspec.Struct, frozen=True):
    """The steps of the last minute until the last one that ended."""

    step: int  # the last
    since_s: float  # it ended
    steps: int
    mean_ms: float
    most_ms: float
    shares: dict[str, float]  # of their time, by cause; causes may overlap


def last_minute(run: WatchedRun, now_unix_ns: int) -> LastMinute | None:
    """What a run does now; None before the end of its first step."""
    ends = run.steps["begin_ns"] + run.steps["wall_ns"]
    if not len(ends):
        return None
    latest = run.steps[ends > ends[-1] - 60_000_000_000]  # ns
    wall = 1e-6 * latest["wall_ns"]
    since_s = 1e-9 * (now_unix_ns - run.facts.begun_unix_ns - int(ends[-1]))
    shares = {cause: float(latest[field].sum() / wall.sum()) for field, cause in CAUSES.items()}
    step, most_ms = int(latest["step"][-1]), float(wall.max())
    return LastMinute(step, since_s, len(latest), float(wall.mean()), most_ms, shares)


def own_ms(steps: Array) -> Floats:
    """Steps without evaluation and checkpoints, ms."""
    own: Floats = 1e-6 * steps["wall_ns"] - steps["evaluation"] - steps["checkpoint"]
    return own


def _losses(run: WatchedRun, run_s: float) -> list[Loss]:
    facts, totals, count = run.facts, run.totals, int(run.totals["step"])
    start_s = 1e-9 * (facts.begun_unix_ns + int(totals["begin_ns"]) - facts.created_unix_ns)
    found = [("start, with the first step", start_s if count else 0.0, _line_of_start(run, start_s))]
    if starts := facts.worker_starts:
        start_ns = starts.get("starting_ns", 0) + starts.get("first_ns", 0)
        found.append((_STARTS, 1e-9 * start_ns, _times(starts.get("starts", 0))))
    for field, cause in CAUSES.items():
        total_s = 1e-3 * float(totals[field]) * count
        left_s = total_s - sum(1e-9 * place.total_ns for place in facts.places if place.kind == field)
        found.append((cause, left_s if left_s > _ROUNDED * total_s else 0.0, ""))
    for place in facts.places:
        if place.kind in _BY_LINE:
            where = f"{_at(place)}, {_times(place.count)}" if place.line else ""
            found.append((_BY_LINE[place.kind], 1e-9 * place.total_ns, where))
    losses = [Loss(cause, lost, lost / run_s, where) for cause, lost, where in found if lost > 0]
    return sorted(losses, key=lambda loss: -loss.lost_s)


def _line_of_start(run: WatchedRun, start_s: float) -> str:
    """The line that took half of the start or more, of which samples see the part since the import."""
    before_s = 1e-9 * float(run.totals["begin_ns"])
    shares = _line_shares(run, run.samples["ns"] < run.totals["begin_ns"])
    is_most = len(shares) and shares.max() * before_s >= _HALF * start_s
    return _at(run.lines[int(shares.argmax())]) if is_most else ""


def _lines(run: WatchedRun, run_s: float) -> list[Loss]:
    """What each line of the training thread took in all steps, loops and calls of libraries included."""
    shares = _line_shares(run, run.samples["ns"] >= run.totals["begin_ns"])
    taken_s = 1e-9 * float(run.totals["wall_ns"]) * shares
    most = [at for at in np.argsort(-taken_s)[:_MOST_LINES] if taken_s[at] > 0]
    return [Loss("", float(taken_s[at]), float(taken_s[at]) / run_s, _at(run.lines[at])) for at in most]


def _roles(run: WatchedRun) -> list[RoleTime]:
    """What each role waits for, who waits least first; nothing for a single one."""
    after_start, found = run.samples["ns"] >= run.totals["begin_ns"], []
    for role, count in {"": 1, **run.facts.processes}.items():
        samples, lasted = _lasted(run, after_start, role)
        if role != LOADER_WORKER and len(samples):
            slept, worked = (
                np.bincount(samples["line"], lasted * kind, len(run.lines))
                for kind in (samples["slept"] > 0, samples["slept"] == 0)
            )
            places = [_at(run.lines[int(taken.argmax())]) if taken.any() else "" for taken in (slept, worked)]
            waits = float(slept.sum() / max(lasted.sum(), 1))
            found.append(RoleTime(role or "training", count, waits, *places))
    return sorted(found, key=lambda role: role.waits) if len(found) > 1 else []


def _line_shares(run: WatchedRun, asked: Mask, role: str = "") -> Floats:
    """The share of each line in the time of these samples of a role; nothing where they are too few."""
    samples, lasted = _lasted(run, asked, role)
    shares: Floats = np.bincount(samples["line"], lasted, len(run.lines)) / max(lasted.sum(), 1)
    return shares


def _lasted(run: WatchedRun, asked: Mask, role: str) -> tuple[Array, Floats]:
    """The samples of a role, and how long each of those asked for lasted, ns; none where they are too few.

    A sample counts as long as it is away from its neighbors: without a core of its own the sampler
    takes fewer of a thread that works than of one that waits.
    """
    of_role = np.array([line.role == role for line in run.lines], dtype=bool)[run.samples["line"]]
    if np.count_nonzero(of_role & asked) < _FEWEST_SAMPLES:
        return run.samples[:0], np.zeros(0)
    samples = run.samples[of_role]
    return samples, np.gradient(samples["ns"].astype(float)) * asked[of_role]


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def slow_steps(run: WatchedRun) -> tuple[list[UnusualSteps], float]:
    """Unusually long steps: stretches, and single ones by cause; and the usual length, ms.

    Stretches are looked for without the time in which others had the core, which may hide them, and
    elsewhere with it.
    """
    steps, lengths = run.steps, own_ms(run.steps)
    lengths_alone = np.clip(lengths - steps["queued"], 1e-3, None)  # ms; both are rounded
    parts, alone = slow_parts(lengths), slow_parts(lengths_alone)
    own_spans, spans_of_others = _spans(run, lengths_alone, alone)
    own = _inside(own_spans, len(steps))
    shared = _inside([*parts.stretches, *spans_of_others], len(steps)) & ~own
    single = (parts.single | alone.single) & ~own & ~shared & (lengths >= parts.usual + _SLICE_MS)
    normal = steps[~(own | shared | single)]
    if len(normal) in (0, len(steps)):
        return [], parts.usual
    usual = {field: float(np.median(normal[field])) for field in _EXPLANATIONS}
    singles = steps[single]
    positions = np.flatnonzero(single).tolist()
    causes = np.array([_cause_of_single(run, at, usual, parts.usual) for at in positions], dtype=str)
    groups = [(steps[first:end], _OTHERS) for first, end in runs_of(shared) if end - first >= SHORTEST]
    groups += [(singles[causes == cause], cause) for cause in sorted(set(causes))]
    found = [(rows, _describe(run, rows, normal, usual, parts.usual, cause)) for rows, cause in groups]
    del usual["queued"]
    own_rows = [steps[first : last + 1] for first, last in own_spans]
    found += [(rows, _describe(run, rows, normal, usual, alone.usual)) for rows in own_rows]
    told = [slow for rows, slow in found if _is_told(run, slow, rows, normal)]
    return sorted(told, key=lambda slow: -slow.lost_s), parts.usual


def _is_told(run: WatchedRun, slow: UnusualSteps, rows: Array, normal: Array) -> bool:
    """Whether steps are longer than a machine makes equal work, which takes longer at all lines alike."""
    if slow.numbers or slow.count == 1 or slow.ratio >= _NEIGHBOR:
        return slow.lost_s > 0
    if slow.cause == _WAITED:  # at one line
        return slow.ratio >= _MORE_WORK
    if slow.lost_s < _LEAST_S or slow.cause not in _OF_CORE:
        return slow.lost_s >= _LEAST_S
    beyond_ms = _line_ms(run, rows) - slow.ratio * _line_ms(run, normal)
    least_ms = _HALF * 1e3 * slow.lost_s / slow.count
    return slow.ratio >= _MORE_WORK and bool(len(beyond_ms)) and float(beyond_ms.max()) >= least_ms


def _spans(run: WatchedRun, lengths: Floats, parts: SlowParts) -> tuple[list[Span], list[Span]]:
    """Slow stretches that are the script's own, and those that others explain."""
    rounds = _slow_rounds(lengths, run.facts.worker_starts.get("workers", 1))
    in_rounds = _inside(rounds, len(lengths))
    spans = [*rounds, *(span for span in parts.stretches if not in_rounds[span[0] : span[1] + 1].any())]
    normal = run.steps[~_inside(spans, len(lengths))]
    of_others = [_is_of_others(run, run.steps[a : b + 1], normal, parts.usual) for a, b in spans]
    return list(compress(spans, np.logical_not(of_others))), list(compress(spans, of_others))


def _is_of_others(run: WatchedRun, slow: Array, normal: Array, usual_ms: float) -> bool:
    """Whether slow steps are about as long as if all threads of the job had as little of a core as this one.

    That makes all lines longer, so it is the script's doing if one of them takes half of the excess.
    """
    cpu, queued, own = (float(values.mean()) for values in (slow["cpu"], slow["queued"], own_ms(slow)))
    excess_ms, slower = own - queued - usual_ms, _UNEVEN * (cpu + queued) / max(cpu, 1e-3)  # at least 1 us
    is_measured = float((slow["gc"] + slow["compile"]).mean()) >= _HALF * excess_ms
    if is_measured or queued < _BUSY * cpu or own > slower * usual_ms:
        return False
    more_ms = _line_ms(run, slow) - slower * _line_ms(run, normal)
    return not len(more_ms) or float(more_ms.max()) < _HALF * max(excess_ms, queued)


def _inside(stretches: list[Span], count: int) -> Mask:
    mask = np.zeros(count, bool)
    for first, last in stretches:
        mask[first : last + 1] = True
    return mask


def _slow_rounds(lengths: Floats, workers: int) -> list[Span]:
    """Stretches of rounds of a step for each worker: workers in phase are waited for once a round."""
    rounds = len(lengths) // max(workers, 1)
    if workers < 2 or rounds < FEWEST:
        return []
    means = lengths[: rounds * workers].reshape(rounds, workers).mean(axis=1)
    slow = slow_parts(means).stretches
    return [(first * workers, (last + 1) * workers - 1) for first, last in slow]


def _cause_of_single(run: WatchedRun, at: int, usual: dict[str, float], usual_ms: float) -> str:
    """What a single step took longer for; among steps that often have no core only what is measured."""
    step, around = run.steps[at : at + 1], run.steps[max(at - BLOCK, 0) : at + BLOCK]
    cause = _cause(step, usual, float(own_ms(step)[0]) - usual_ms)[0]
    is_measured = cause in (CAUSES["compile"], CAUSES["gc"])
    is_busy = float(around["queued"].sum()) > _BUSY * float(around["cpu"].sum())
    return _OTHERS if is_busy and not is_measured else cause


def _cause(slow: Array, usual: dict[str, float], excess_ms: float) -> tuple[str, float]:
    """What explains most of what steps took longer, and how many ms a step of it; empty if nothing does."""
    for field, usual_ms in usual.items():
        more = float(slow[field].mean()) - usual_ms
        if more >= _HALF * excess_ms:
            return _EXPLANATIONS[field], more
    return "", 0.0


def _line_ms(run: WatchedRun, steps: Array, role: str = "") -> Floats:
    """What each line takes of a step on average, ms; nothing where these steps have too few samples."""
    shares = _line_shares(run, _during(steps, run.samples["ns"]), role)
    return shares * 1e-6 * float(steps["wall_ns"].mean()) if len(steps) else shares


def _during(steps: Array, ns: Array) -> Mask:
    """Which moments are inside of one of these steps."""
    if not len(steps):
        return np.zeros(len(ns), bool)
    at = np.searchsorted(steps["begin_ns"], ns, side="right") - 1
    inside: Mask = (at >= 0) & (ns < steps["begin_ns"][at] + steps["wall_ns"][at])
    return inside


def _of_device(run: WatchedRun, slow: Array, normal: Array) -> str:
    """What the device reported in most of the slow steps and few others."""
    then, usually = (run.device[_during(steps, run.device["ns"])] for steps in (slow, normal))
    if not (len(then) and len(usually)):
        return ""
    clock, usual_clock = 1e-3 * float(np.median(then["clock"])), 1e-3 * float(np.median(usually["clock"]))
    for bits, reason in _THROTTLING.items():
        share, usual_share = ((rows["reasons"].astype(int) & bits > 0).mean() for rows in (then, usually))
        if share >= _HALF > usual_share and clock < usual_clock:
            return f"the clock fell from {usual_clock:.2f} to {clock:.2f} GHz: {reason}"
    retries = int(then["retries"].max() - then["retries"].min())
    return f"the allocator gave memory back {_times(retries)} to get some" if retries else ""


def _slow_line(
    run: WatchedRun, slow: Array, normal: Array, excess_ms: float, role: str = "", most_lines: int = 1
) -> tuple[str, float]:
    """The line that explains most of what steps took longer, if that is half of it; at most so many."""
    more_ms = _line_ms(run, slow, role) - _line_ms(run, normal, role)
    if role:  # several work at once, and before the step that waits: their lines share the wait
        more_ms *= excess_ms / max(more_ms.clip(0).sum(), 1e-9)  # ms; where none took longer
    for count in range(1, min(most_lines, len(more_ms)) + 1):
        most = np.argsort(-more_ms)[:count]
        if (explained_ms := float(more_ms[most].sum())) >= _HALF * excess_ms:
            return ", ".join(_at(run.lines[at]) + " (worker)" * bool(role) for at in most), explained_ms
    return "", 0.0


def _describe(
    run: WatchedRun, rows: Array, normal: Array, usual: dict[str, float], usual_ms: float, known: str = ""
) -> UnusualSteps:
    """Slow steps next to `normal` ones and their `usual` times, which lack `queued` where it is no cause.

    `known` is their cause, if it is; no line of the program is to blame for what others or the device do.
    """
    longer = own_ms(rows) - usual_ms - (0 if "queued" in usual else rows["queued"])
    # What other threads do all the time they do more of in a longer step.
    times = float(rows["wall_ns"].mean() / normal["wall_ns"].mean())
    usual = {**usual, "threads": usual["threads"] * times}
    cause, cause_ms = _cause(rows, usual, float(longer.mean()))
    where, where_ms = "", 0.0
    if known == _OTHERS:
        cause_ms = max(float(rows["queued"].mean()) - usual["queued"], 0.0)
        of_threads_ms = float(rows["threads"].mean()) - usual["threads"]  # other processes leave them less
        is_threads = of_threads_ms >= _HALF * max(cause_ms, float(longer.mean()))
        cause = _THREADS if len(rows) >= SHORTEST and is_threads else known
    elif cause == CAUSES["input"]:
        where, where_ms = _slow_line(run, rows, normal, cause_ms, LOADER_WORKER)
    if not where and known != _OTHERS and cause not in _OF_DEVICE.values():
        most_lines = _COMPILING if cause == CAUSES["compile"] else 1
        where, where_ms = _slow_line(run, rows, normal, float(longer.mean()), most_lines=most_lines)
    return UnusualSteps(
        first=int(rows["step"][0]),
        last=int(rows["step"][-1]),
        count=len(rows),
        ratio=1 + float(longer.mean()) / usual_ms,
        lost_s=1e-3 * float(longer.sum()),
        cause=cause or (_WAITED if where else _UNKNOWN),
        cause_ms=cause_ms,
        where=where,
        where_ms=where_ms,
        device=_of_device(run, rows, normal),
        numbers=rows["step"][:_MOST_NUMBERS].tolist() if len(rows) <= np.ptp(rows["step"]) else [],
        grows_to=_grows_to(longer) / usual_ms + 1 if _grows_to(longer) else 0.0,
    )


def _grows_to(longer: Floats) -> float:
    """How much longer the last fifth of many steps takes, ms, if each does than the one before; else 0."""
    if len(longer) < _FIFTHS * SHORTEST:
        return 0.0
    each = np.array([np.median(part) for part in np.array_split(longer, _FIFTHS)])
    return float(each[-1]) if (np.diff(each) > 0).all() and each[-1] >= _GROWN * each[0] else 0.0


def _at(place: WatchedPlace | SampledLine) -> str:
    return f"{place.function} at {PurePath(place.file).name}:{place.line}" if place.file else ""


def slow_rank(runs: Sequence[WatchedRun]) -> SlowRank | None:
    """The rank that is the last in most steps, of all or of a stretch; None if there is none.

    All ranks take equally long, as others wait for the slowest: a rank's own time is outside of
    backward passes and collectives. Where devices do the work the CPU waits anywhere: not judged.
    Of several runs of a rank, as of a job that was started again, the last counts.
    """
    by_start = sorted(runs, key=lambda run: run.facts.created_unix_ns)
    runs = [*{run.facts.rank: run for run in by_start}.values()]
    common = reduce(np.intersect1d, (run.steps["step"] for run in runs))
    if len(runs) < 2 or len(common) < FEWEST or any(run.facts.on_device for run in runs):
        return None
    steps = [run.steps[np.isin(run.steps["step"], common)] for run in runs]
    own = np.array([own_ms(rows) - rows["backward"] - rows["collective"] for rows in steps])
    last, found = own.argmax(axis=0), []
    for at, run in enumerate(runs):
        excess = own[at] - np.median(np.delete(own, at, axis=0), axis=0)
        for first, end in [(0, len(common) - 1), *slow_parts(excess).stretches]:
            if np.mean(last[first : end + 1] == at) >= _MOSTLY:
                lost_ms = float(excess[first : end + 1].mean())
                found.append(SlowRank(run.facts.rank, int(common[first]), int(common[end]), lost_ms))
    return max(found, key=lambda slow: slow.lost_ms * (slow.last - slow.first + 1), default=None)
