"""What a capture says of the steps in it and after it: cores, waiting, and loading of data.

Functions that take a capture take its manifest; shares are from 0 to 1.
"""

from collections.abc import Mapping
from statistics import median
from typing import Any, NamedTuple

from stepscope.base.numbers import rounded


def milliseconds(ns: float) -> str:
    """A time with three digits and its unit, never with an exponent.

    Example:
        >>> milliseconds(421_271_000), milliseconds(4_100_000), milliseconds(61_234_567_000), milliseconds(12)
        ('421 ms', '4.1 ms', '61,235 ms', '0.000012 ms')
    """
    return f"{rounded(ns / 1e6)} ms"


def cpus_of(capture: Mapping[str, Any]) -> int:
    """How many cores the process could use; 0 if that is unknown."""
    return int(capture.get("cpus_usable") or capture.get("cpu_count") or 0)


def workers_of(capture: Mapping[str, Any]) -> int:
    """How many workers the DataLoader with most of them has; 0 if none is known."""
    return max((one.get("workers") or 0 for one in capture.get("loaders") or ()), default=0)


MUCH_BLOCKED = 0.2  # of the step; shares of CPU time vary by less from step to step
QUIET = 0.95  # of a core; with less, times are visibly longer than on a quiet machine


def core_share(capture: Mapping[str, Any]) -> float | None:
    """The share of a core that the training thread got of the time in which it could run.

    Time in which it waits for a device, data or other processes of its own does not count. Where it waited
    for a core in a few steps alone, the share of the typical one counts. In JAX, whose threads do the work,
    it is that of all threads together. None where it was not measured.
    """
    times = capture.get("recorded_steps") or {}
    elapsed, queued, used = (times.get(f"{name}_ns") for name in ("elapsed", "queued", "used"))
    if not elapsed or queued is None:
        return None
    if times.get("cpu_ns") is None:
        return None if used is None else float(used / max(used + queued, 1))
    typical: float = times.get("cpu_ns", 0) / max(times.get("median_ns", 0), 1)
    over_all: float = 1 - queued / elapsed
    return max(over_all, min(typical, 1.0))


def active_share(capture: Mapping[str, Any], steps: str = "recorded_steps") -> float:
    """The share of a step in which the training thread ran, or waited for a core.

    Else it waited for something else: another process, a disk, a lock, a device, a sleep. An event
    loop that awaits something waits, though it may get its core late then.

    The steps are `recorded_steps` or `unrecorded_steps`; 1 where it was not measured.
    """
    times, most = capture.get(steps) or {}, max(1 - capture.get("awaited", 0.0), 0.0)
    elapsed, queued, cpu = (times.get(f"{name}_ns") for name in ("elapsed", "queued", "cpu"))
    if not elapsed or queued is None or cpu is None:
        return most
    if each := times.get("each"):  # between steps the recorder works, and does not wait
        blocked = max(elapsed - (times.get("used_ns") or 0) - queued, 0)
        return float(min(max(1 - blocked / max(sum(each["elapsed_ns"]), 1), 0.0), most))
    share: float = cpu / max(times.get("median_ns", 0), 1) + queued / elapsed
    return min(share, most)


def usual_step_ns(capture: Mapping[str, Any]) -> float:
    """What a step after the recording takes without its waits for a core; 0 where none was measured."""
    times, blocked = capture.get("unrecorded_steps") or {}, 1 - active_share(capture, "unrecorded_steps")
    median = times.get("median_ns") or 0
    return min(median, (times.get("cpu_ns") or median) + blocked * median)


def held_up_share(capture: Mapping[str, Any]) -> float:
    """The share of a step in which other threads of the process compute and the training thread waits."""
    times = capture.get("recorded_steps") or {}
    own, process = (times.get(f"{name}_ns") or 0 for name in ("cpu", "process_cpu"))
    return min(max(process - own, 0) / max(times.get("median_ns", 0), 1), 1 - active_share(capture))


def held_up_by_lines(capture: Mapping[str, Any]) -> float:
    """The same where other threads run lines of the program; 0 where none is known, or it is little."""
    held_up = held_up_share(capture) if capture.get("others") else 0.0
    return held_up if held_up >= MUCH_BLOCKED else 0.0


def waits_for_a_core(capture: Mapping[str, Any]) -> bool:
    """Whether the training thread waits for a core, and in later steps for nothing else.

    CPU times then tell more than elapsed ones.
    """
    return (core_share(capture) or 1.0) < QUIET <= active_share(capture, "unrecorded_steps")


def later_blocked_share(capture: Mapping[str, Any]) -> float:
    """How much more of a step the training thread is blocked after the recording than in it.

    What it waits for, such as a thread of the script that fills a queue, goes on while the recorder starts;
    the recorded steps then find it done. 0 where it was not measured.
    """
    return max(active_share(capture) - active_share(capture, "unrecorded_steps"), 0.0)


def blocked_share(part: float, active: float, elsewhere: float = 0.0) -> float:
    """About how much of the steps the training thread is blocked where it runs no operator.

    Operators use a core, or wait for one: what is active besides them is in this part. 0 where it is
    active for more than half of this part, which is Python then. `active` is an `active_share`,
    `elsewhere` the share in which it waits outside of this `part`, for communication or data.
    """
    blocked = min(max(1 - active - elsewhere, part - active, 0.0), part)
    return blocked if blocked >= part / 2 else 0.0


def load_warning(capture: Mapping[str, Any]) -> str:
    """One line on how other processes slowed the recorded steps; empty if they did not."""
    share = core_share(capture)
    if share is None or share >= QUIET:
        return ""
    times = capture["recorded_steps"]
    core = "a core" if times.get("cpu_ns") else "the cores that it could have used"
    workers = workers_of(capture)
    others = f"its {workers} data-loader workers or other processes" if workers else "other processes"
    text = f"this process got {share:.0%} of {core}: {others} used the machine"
    if cpu := times.get("cpu_ns"):
        elapsed = milliseconds(times["median_ns"])
        text += f"; a recorded step has {milliseconds(cpu)} of CPU time in {elapsed}"
    return text


class LaterLoading(NamedTuple):
    """Means per step after the recording, where the longest wait counts as the next longest."""

    ms: float
    step_ms: float

    @property
    def share(self) -> float:
        """The share of the step that loads or waits for data."""
        return self.ms / self.step_ms if self.step_ms else 0.0


def later_parts(capture: Mapping[str, Any]) -> Mapping[str, Any]:
    """Times of the parts of the steps after the recording, by name; none if they were not measured."""
    return (capture.get("unrecorded_steps") or {}).get("parts") or {}


def later_loading(capture: Mapping[str, Any]) -> LaterLoading | None:
    """Loading of data in the steps after the recording; in CPU time if they wait for nothing but a core.

    None where it was not measured, as in JAX and by earlier versions.
    """
    parts = later_parts(capture)
    key = "cpu_ns" if waits_for_a_core(capture) else "recurring_ns"
    times = {name: part.get(key) for name, part in parts.items()}
    if times.get("data_loading") is None or None in times.values():
        return None
    return LaterLoading(times["data_loading"] / 1e6, sum(times.values()) / 1e6)


_AT_ONCE = 3  # data sets whose workers may live next to each other: training, validation, test


class WorkerRestarts(NamedTuple):
    """Workers of DataLoaders that were started again, as for every epoch."""

    workers: int  # of the iterator that has most
    restarts: int  # how many times they were started again
    remakes_loader: bool  # whether a new DataLoader starts them, not the same one
    # what the training loop waited for because of them in the whole run: their starts and stops alone,
    # and also their first batches as far as others come sooner
    least_ns: float
    most_ns: float


def worker_restarts(capture: Mapping[str, Any]) -> WorkerRestarts | None:
    """The restarts of workers in the run; None where there were none, or they were not counted."""
    times = (capture.get("run_shares") or {}).get("worker_starts") or {}
    first_starts = min(times.get("datasets", 0), _AT_ONCE)
    restarts = times.get("starts", 0) - first_starts
    if restarts < 1:
        return None
    starts = times["starts"]
    own = times["starting_ns"] + times["stopping_ns"]
    usual = times["waiting_ns"] / max(times["batches"], 1)
    first = max(times["first_ns"] - times["first"] * usual, 0.0)
    remakes = times["loaders"] > first_starts
    part = restarts / starts
    return WorkerRestarts(times["workers"], restarts, remakes, part * own, part * (own + first))


def apart_ms(capture: Mapping[str, Any]) -> tuple[float, float] | None:
    """What the CPU and the device need for a step, each alone (medians), ms; None if not timed.

    The CPU launched into an empty queue, and the device worked off a full one.
    """
    apart = (capture.get("unrecorded_steps") or {}).get("apart") or {}
    host, device = apart.get("host_ns"), apart.get("device_ns")
    return (median(host) / 1e6, median(device) / 1e6) if host and device else None


def usual_of_places(capture: Mapping[str, Any]) -> dict[str, float]:
    """The median time of evaluations and checkpoints in the run, ns, by place: `save (/x/train.py:9)`."""
    places = (capture.get("run_shares") or {}).get("places", ())
    return {f"{p['function']} ({p['file']}:{p['line']})": t for p in places if (t := p.get("median_ns"))}
