"""The slow steps of a watched run, with their causes.

Where others had the core so often that this explains a stretch, it is put down to them.
"""

from itertools import compress

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Floats, Mask
from stepscope.base.numbers import duration, rounded
from stepscope.base.watch_format import LOADER_WORKER
from stepscope.facts.slow_parts import BLOCK, FEWEST, SHORTEST, SlowParts, Span, cut, runs_of, slow_parts
from stepscope.facts.watched_lines import during, line_ms, place_text, role_samples
from stepscope.read.watched_run import WatchedRun

HALF = 0.5  # of what steps were longer by: a cause that explains less is not named
_OTHERS = "other processes had the training thread's core"
_THREADS = "other threads of the process had the training thread's core"
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
_OWN_DATA = "preparing data in the training thread"
_HELD_UP = "other threads of the process worked while the training thread waited, for the GIL or for them"
_OF_CORE = (_EXPLANATIONS["cpu"], _EXPLANATIONS["threads"], _HELD_UP, _UNKNOWN)  # as of a slower core, too
# Of NVML's reasons for a low clock (nvml.h, nvmlClocksThrottleReason…).
_THROTTLING = {0x60: "thermal throttling", 0x04: "its power limit", 0x88: "the hardware slowed it down"}
_COMPILING = 2  # lines in slow steps; chosen: what makes a batch of another shape compiles as the step does
_MOST_NUMBERS = 1_000  # of steps of one cause; chosen: as many marks as there are pixels
_BUSY = 0.2  # of the CPU time; chosen: who waits as long for a core shares it with others
_SLICE_MS = 10.0  # ms; chosen: kernels, interrupts and neighbors made single steps longer by up to 8 ms
_NEIGHBOR = 1.7  # times; chosen: equal work took up to 1.6 times as long on an idle virtual machine
_MORE_WORK = 1.2  # times; chosen: equal lines differ by up to 1.07 over half of a run of such a machine
_LEAST_S = 0.25  # s; the changes of level of such a machine cost up to 0.12 s each where a line grew most
_FIFTHS, _GROWN = 5, 1.2  # parts, and times the first: of equal ones noise makes this order in 1 of 120
_UNEVEN = 2.0  # times; chosen: others take more of some threads' cores than of the training thread's


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
    edges = sorted(edge for first, last in parts.stretches for edge in (first, last + 1))
    pieces = [piece for first, end in runs_of(shared).tolist() for piece in cut(first, end, edges)]
    groups = [(steps[first:end], _OTHERS) for first, end in pieces if end - first >= SHORTEST]
    groups += [(singles[causes == cause], cause) for cause in sorted(set(causes))]
    found = [(rows, _describe(run, rows, normal, usual, parts.usual, cause)) for rows, cause in groups]
    del usual["queued"]
    own_rows = [steps[first : last + 1] for first, last in own_spans]
    found += [(rows, _describe(run, rows, normal, usual, alone.usual)) for rows in own_rows]
    told = [slow for rows, slow in found if _is_told(run, slow, rows, normal)]
    return sorted(told, key=lambda slow: -slow.lost_s), parts.usual


def sentence_of(slow: UnusualSteps) -> str:
    """What is known of slow steps."""
    lost = f", {duration(slow.lost_s)} in all" if slow.count > 1 else ""
    more = f" +{rounded(slow.cause_ms)} ms" if slow.cause_ms else ""
    line = f"; {slow.where} +{rounded(slow.where_ms, 2)} ms" if slow.where else ""
    device = f"; at the same time {slow.device}" if slow.device else ""
    return f"{took_text(slow)}{lost}: {slow.cause}{more}{line}{device}"


def took_text(slow: UnusualSteps) -> str:
    steps = f"steps {slow.first:,} to {slow.last:,}" if slow.count > 1 else f"step {slow.first:,}"
    some = f" ({slow.count:,} of them)" if slow.count < slow.last - slow.first + 1 else ""
    growing = f", growing to {rounded(slow.grows_to)} times" if slow.grows_to else ""
    return f"{steps}{some} took {rounded(slow.ratio)} times the usual{growing}"


def own_ms(steps: Array) -> Floats:
    """Steps without evaluation and checkpoints, ms; both are rounded."""
    own: Floats = 1e-6 * steps["wall_ns"] - steps["evaluation"] - steps["checkpoint"]
    return np.clip(own, 1e-3, None)  # 1 us


def _is_told(run: WatchedRun, slow: UnusualSteps, rows: Array, normal: Array) -> bool:
    """Whether steps are longer than a machine makes equal work, which takes longer at all lines alike."""
    if slow.numbers or slow.count == 1 or slow.ratio >= _NEIGHBOR:
        return slow.lost_s > 0
    if slow.cause == _WAITED:  # at one line
        return slow.ratio >= _MORE_WORK
    if slow.lost_s < _LEAST_S or slow.cause not in _OF_CORE:
        return slow.lost_s >= _LEAST_S
    beyond_ms = line_ms(run, rows) - slow.ratio * line_ms(run, normal)
    least_ms = HALF * 1e3 * slow.lost_s / slow.count
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
    told_ms = min((_NEIGHBOR - 1) * usual_ms, 1e3 * _LEAST_S / len(slow))  # as `_is_told` asks for
    measured = slow["gc"] + slow["compile"] + slow["input"] * _workers_sleep(run, slow)
    is_measured = float(measured.mean()) >= HALF * max(excess_ms, told_ms)
    if is_measured or queued < _BUSY * cpu or own > slower * usual_ms:
        return False
    more_ms = line_ms(run, slow) - slower * line_ms(run, normal)
    return not len(more_ms) or float(more_ms.max()) < HALF * max(excess_ms, queued)


def _workers_sleep(run: WatchedRun, steps: Array) -> bool:
    """Whether workers that make batches mostly sleep: one that others leave no core does not."""
    samples, lasted = role_samples(run, during(steps, run.samples["ns"]), LOADER_WORKER)
    return bool(lasted[samples["slept"] > 0].sum() > HALF * lasted.sum())


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
        if more >= HALF * excess_ms:
            return _EXPLANATIONS[field], more
    return "", 0.0


def _by_cpu_time(cause: str, slow: Array, usual: dict[str, float], excess_ms: float) -> str:
    """The cause, or that the thread computes its data, or others hold it up: in JAX these do the work."""
    fields = ("cpu", "threads", "backward")
    cpu, threads, backward = (float(slow[name].mean()) - usual[name] >= HALF * excess_ms for name in fields)
    if cause == CAUSES["input"] and cpu:
        return _OWN_DATA
    is_held_up = threads and not (cpu or backward) and slow["optimizer"].any()  # of which JAX knows none
    return _HELD_UP if is_held_up and cause in (CAUSES["input"], _EXPLANATIONS["threads"]) else cause


def _of_device(run: WatchedRun, slow: Array, normal: Array, is_stretch: bool) -> str:
    """What the device reported in most of the slow steps and few others."""
    then, usually = (run.device[during(steps, run.device["ns"])] for steps in (slow, normal))
    if not (len(then) and len(usually)):
        return ""
    clock, usual_clock = (round(1e-3 * float(np.median(rows["clock"])), 2) for rows in (then, usually))
    for bits, reason in _THROTTLING.items():
        share, usual_share = ((rows["reasons"].astype(int) & bits > 0).mean() for rows in (then, usually))
        if share >= HALF > usual_share and clock < usual_clock:
            return f"the clock fell from {usual_clock:.2f} to {clock:.2f} GHz: {reason}"
    retries = int(then["retries"].max() - then["retries"].min()) if is_stretch else 0
    return f"the allocator gave memory back {times_text(retries)} to get some" if retries else ""


def _slow_line(
    run: WatchedRun, slow: Array, normal: Array, excess_ms: float, role: str = "", most_lines: int = 1
) -> tuple[str, float]:
    """The line that explains most of what steps took longer, if that is half of it; at most so many."""
    more_ms = line_ms(run, slow, role) - line_ms(run, normal, role)
    if role:  # several work at once, and before the step that waits: their lines share the wait
        more_ms *= excess_ms / max(more_ms.clip(0).sum(), 1e-9)  # ms; where none took longer
    for count in range(1, min(most_lines, len(more_ms)) + 1):
        most = np.argsort(-more_ms)[:count]
        if (explained_ms := float(more_ms[most].sum())) >= HALF * excess_ms:
            places = (place_text(run.lines[at]) + " (worker)" * bool(role) for at in most)
            return ", ".join(places), explained_ms
    return "", 0.0


def _describe(
    run: WatchedRun, rows: Array, normal: Array, usual: dict[str, float], usual_ms: float, known: str = ""
) -> UnusualSteps:
    """Slow steps next to `normal` ones and their `usual` times, which lack `queued` where it is no cause.

    `known` is their cause, if it is; no line of the program is to blame for what the device does, nor for
    others where they had the core for half of what the steps were longer by.
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
        is_threads = of_threads_ms >= HALF * max(cause_ms, float(longer.mean()))
        cause = _THREADS if len(rows) >= SHORTEST and is_threads else known
    elif cause == CAUSES["input"]:
        where, where_ms = _slow_line(run, rows, normal, cause_ms, LOADER_WORKER)
    is_of_others = known == _OTHERS and cause_ms >= HALF * float(longer.mean())
    if not where and not is_of_others and cause not in _OF_DEVICE.values():
        most_lines = _COMPILING if cause == CAUSES["compile"] else 1
        where, where_ms = _slow_line(run, rows, normal, float(longer.mean()), most_lines=most_lines)
    cause = cause if "(worker)" in where else _by_cpu_time(cause, rows, usual, float(longer.mean()))
    numbers = rows["step"][:_MOST_NUMBERS].tolist() if len(rows) <= np.ptp(rows["step"]) else []
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
        device=_of_device(run, rows, normal, is_stretch=not numbers),
        numbers=numbers,
        grows_to=_grows_to(longer) / usual_ms + 1 if _grows_to(longer) else 0.0,
    )


def _grows_to(longer: Floats) -> float:
    """How much longer the last fifth of many steps takes, ms, if each does than the one before; else 0."""
    if len(longer) < _FIFTHS * SHORTEST:
        return 0.0
    each = np.array([np.median(part) for part in np.array_split(longer, _FIFTHS)])
    return float(each[-1]) if (np.diff(each) > 0).all() and each[-1] >= _GROWN * each[0] else 0.0


def times_text(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
