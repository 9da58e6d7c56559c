"""The bill of a watched run: what it lost time to; what it does now; and the rank that others wait for."""

from collections.abc import Sequence
from functools import reduce

import msgspec
import numpy as np

from stepscope.base.arrays import Floats
from stepscope.base.numbers import duration, is_title, percent
from stepscope.base.watch_format import LOADER_WORKER, PARTS
from stepscope.facts.slow_parts import FEWEST, slow_parts
from stepscope.facts.slow_steps import CAUSES, HALF, UnusualSteps, own_ms, slow_steps, times_text, took_text
from stepscope.facts.watched_lines import line_shares, place_text, role_samples
from stepscope.read.watched_run import WatchedRun, WatchedRunFacts

_MOSTLY = 0.8  # of the steps; chosen: of four equal ranks each is the last in a quarter
_STARTS = "data loaders starting their workers"
# Losses by line, by the kind of a place.
_BY_LINE = {
    "evaluation": "evaluation",
    "rollout": "rollout or generation",
    "checkpoint": "checkpoints",
    "compile": CAUSES["compile"],
    "gc": CAUSES["gc"],
}
FIELDS = {cause: field for field, cause in (CAUSES | _BY_LINE).items()}
FIELDS |= {_BY_LINE["rollout"]: "evaluation"}  # of which they are a part in steps
_MOST_LINES = 20  # in a bill
_ROUNDED = 1e-3  # of a sum; chosen: means are written with 24 bits, and what lines lack is more
_NAMED, _NOTABLE = 3, 0.02  # causes in a verdict, and what they cost of the run at least; chosen
_SELDOM, _OFTEN = 0.2, 0.3  # of its time; chosen: a role that waits so little limits who waits so much


class Loss(msgspec.Struct, frozen=True):
    """Time that a run lost to one cause; losses of different causes may overlap."""

    cause: str
    lost_s: float
    share: float  # of the run
    where: str


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
    stepped_ns = run.facts.begun_unix_ns + int(run.totals["begin_ns"]) + int(run.totals["wall_ns"])
    # The clock may have been set back.
    run_s = 1e-9 * max(max(run.updated_unix_ns, stepped_ns) - run.facts.created_unix_ns, 1)
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


def verdict_of(bill: Bill) -> str:
    """What a run lost most time to, the first cause as a title, and its most expensive slow steps."""
    if bill.facts.out_of_memory:
        device, _, asked = bill.facts.out_of_memory.partition(": ")
        return f"Out of memory on {device}.{f' The allocation: {asked}.' if asked else ''}"
    notable, run = _notable(bill.losses), f"Of {duration(bill.run_s)}"
    causes = [f"{duration(loss.lost_s)} {loss.cause}" for loss in notable]
    places = [loss.where.partition(", ")[0] for loss in notable]
    lost = [", ".join(filter(None, pair)) for pair in zip(causes, places, strict=True)]
    firsts = (*lost[:1], *causes[:1], f"no cause took {percent(_NOTABLE)}")
    title = next(filter(is_title, (f"{run}: {first}" for first in firsts)))
    others = f" Then {'; '.join(lost[1:])}." if lost[1:] else ""
    slow = "Too few steps to judge them" if bill.steps < FEWEST else "No step was unusually slow"
    if bill.slow:
        slow = f"{took_text(bill.slow[0])}: {bill.slow[0].cause}".capitalize()
    limits = f" Role {bill.limiting_role} limits the run: the others wait." if bill.limiting_role else ""
    return f"{title}.{others} {slow}.{limits}"


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
    outside = {loss.cause: loss.lost_s for loss in first if loss.cause not in FIELDS}
    starts_s = outside.pop(_STARTS, 0.0)  # before the first step, or while later ones wait for data
    before_s = sum(outside.values())
    most, least = in_turn + sum(others), np.maximum.reduce([in_turn, *others])
    most_s, least_s = (all_steps * float(np.minimum(part, wall_ms).sum()) for part in (most, least))
    return max(run_s - before_s - starts_s - most_s, 0.0), run_s - max(before_s + least_s, starts_s)


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


def _losses(run: WatchedRun, run_s: float) -> list[Loss]:
    facts, totals, count = run.facts, run.totals, int(run.totals["step"])
    start_s = 1e-9 * (facts.begun_unix_ns + int(totals["begin_ns"]) - facts.created_unix_ns)
    found = [("start, with the first step", start_s if count else 0.0, _line_of_start(run, start_s))]
    if starts := facts.worker_starts:
        start_ns = starts.get("starting_ns", 0) + starts.get("first_ns", 0)
        found.append((_STARTS, 1e-9 * start_ns, times_text(starts.get("starts", 0))))
    for field, cause in CAUSES.items():
        total_s = 1e-3 * float(totals[field]) * count
        left_s = total_s - sum(1e-9 * place.total_ns for place in facts.places if place.kind == field)
        found.append((cause, left_s if left_s > _ROUNDED * total_s else 0.0, ""))
    for place in facts.places:
        if place.kind in _BY_LINE:
            where = f"{place_text(place)}, {times_text(place.count)}" if place.line else ""
            found.append((_BY_LINE[place.kind], 1e-9 * place.total_ns, where))
    losses = [Loss(cause, lost, lost / run_s, where) for cause, lost, where in found if lost > 0]
    return sorted(losses, key=lambda loss: -loss.lost_s)


def _line_of_start(run: WatchedRun, start_s: float) -> str:
    """The line that took half of the start or more, of which samples see the part since the import."""
    before_s = 1e-9 * float(run.totals["begin_ns"])
    shares = line_shares(run, run.samples["ns"] < run.totals["begin_ns"])
    is_most = len(shares) and shares.max() * before_s >= HALF * start_s
    return place_text(run.lines[int(shares.argmax())]) if is_most else ""


def _lines(run: WatchedRun, run_s: float) -> list[Loss]:
    """What each line of the training thread took in all steps, loops and calls of libraries included."""
    last, ns = run.steps[-1:], run.samples["ns"]  # other work may follow, as a test
    ends_ns = (last["begin_ns"] + last["wall_ns"]).max(initial=0)
    shares = line_shares(run, (ns >= run.totals["begin_ns"]) & (ns < ends_ns))
    taken_s = 1e-9 * float(run.totals["wall_ns"]) * shares
    found = [(float(taken_s[at]), run.lines[at]) for at in np.argsort(-taken_s)[:_MOST_LINES]]
    return [Loss("", spent_s, spent_s / run_s, place_text(line)) for spent_s, line in found if spent_s > 0]


def _roles(run: WatchedRun) -> list[RoleTime]:
    """What each role waits for, who waits least first; nothing for a single one."""
    after_start, found = run.samples["ns"] >= run.totals["begin_ns"], []
    for role, count in {"": 1, **run.facts.processes}.items():
        samples, lasted = role_samples(run, after_start, role)
        if role != LOADER_WORKER and len(samples):
            slept, worked = (
                np.bincount(samples["line"], lasted * kind, len(run.lines))
                for kind in (samples["slept"] > 0, samples["slept"] == 0)
            )
            places = [
                place_text(run.lines[int(taken.argmax())]) if taken.any() else "" for taken in (slept, worked)
            ]
            waits = float(slept.sum() / max(lasted.sum(), 1))
            found.append(RoleTime(role or "training", count, waits, *places))
    return sorted(found, key=lambda role: role.waits) if len(found) > 1 else []


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
                lost_ms = float(excess[first : end + 1].clip(0).mean())  # where others are last, nothing
                found.append(SlowRank(run.facts.rank, int(common[first]), int(common[end]), lost_ms))
    return max(found, key=lambda slow: slow.lost_ms * (slow.last - slow.first + 1), default=None)
