"""A prediction: the measured, replayed and predicted step, its range, and its peak memory."""

import inspect
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property

import msgspec
import numpy as np

from stepscope.base.arrays import Ids32, Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.base.parallel import in_threads
from stepscope.base.students_t import error_of_mean
from stepscope.errors import ChangeError, TraceError
from stepscope.facts.annotate.device.one_off_costs import inside, one_off_costs
from stepscope.facts.annotate.links.launches import shows_cpu
from stepscope.facts.annotate.steps.missing_work import work_is_missing
from stepscope.facts.annotate.steps.step_table import mean_device_ms
from stepscope.graph import (
    Graph,
    Simulation,
    breakdown,
    critical_ms,
    data_basis,
    remove,
    scale,
    simulate,
    without_unexplained_delays,
)
from stepscope.graph.critical_path import BusySides
from stepscope.models.memory.caching_allocator import Settings, repeated, replay
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.recorded_memory import RecordedMemory, recorded_memory
from stepscope.models.whatif.anchor import (
    FREE_PACE,
    OTHER_PACE,
    anchored,
    at_pace,
    busiest_ns,
    host_ms,
    mean_ms,
    overlapping_ms,
    step_ms,
    unwatched_ms,
    waited_for_room,
)
from stepscope.models.whatif.change import Request
from stepscope.models.whatif.parts.beside_collectives import CollectiveSlowdown, beside_collectives
from stepscope.trace.recorded_steps import load_warning
from stepscope.trace.sets import distinct

MOST_TASKS = 1 << 22  # of graphs that are simulated at once: of each, 100 bytes a task
_LATENCY_NS = 10_000  # of a launch, which takes no longer
_LEAST_UNEXPLAINED = 0.001  # of the step: what a percentage with one decimal shows
_LEAST_FREE = 0.01  # of the step; chosen: less does not matter
_FULL_QUEUE = (
    "the CPU, which limits the predicted step, is as slow as while it waited for room in the device's "
    "queue; without such waits it may be faster"
)
_LEAST_OVERLAP = 0.05  # of the step; chosen: less is within what single steps differ by
_ONE_STEP = (
    "one step alone counts until its device work ends; if the next step does not "
    "wait for that, steps take {before} ms, and {after} ms with the change"
)
_MOVES_COLLECTIVES = ("Distributed training", "Ranks of one job")  # groups of changes
_NO_OTHER_STEP = "steps are alike, although the file has only one"
_ALWAYS = "unchanged work takes as long as it did, even if it overlaps with different work"
_NO_CPU = "the CPU, which the trace does not show, keeps pace with the device"
_ALIKE = "other ranks change in the same way"
_TOGETHER = (
    "times are the mean of all ranks; a collective begins when the last rank arrives, and then "
    "takes as long as it did"
)


Range = tuple[float, float]


class Prediction(msgspec.Struct, frozen=True):
    """The effect of some changes on the step; times are means per step, ms."""

    measured_step_ms: float  # until the next step begins; of the last, until its device work ends
    # the same steps simulated without a change, without one-off costs, and at the pace that the CPU
    # has where nothing is recorded, if that is known
    replayed_step_ms: float
    replay_error: float  # replayed over measured, both without one-off costs, minus 1
    predicted_step_ms: float  # simulated with the changes, in the order given
    speedup: float  # replayed over predicted
    # the prediction if the changes gain most and least, each widened by the largest of five errors:
    # the replay's, the step's unexplained part, the published one, how much longer kernels take
    # beside collectives, and what the gain differs by from step to step; ms
    range: Range
    changes: tuple[str, ...]  # as requested
    basis: tuple[str, ...]  # where the numbers of each change come from
    assumptions: tuple[str, ...]  # what has to hold
    breakdown: dict[str, BusySides]  # before and after: only CPU, only device, both, neither, ms
    critical_path: dict[str, dict[str, dict[str, float]]]  # before and after, by stage and by module, ms
    device_busy_ms: float | None = None  # measured busy time of the busiest device; None if none works
    device_idle_ms: float | None = None  # the rest of the measured step
    # the peak; None if it was not asked for, not recorded, or cannot be predicted
    memory: "MemoryPrediction | None" = None
    one_off_ms: float = 0.0  # what the measured step takes longer by costs that later steps do not pay
    # before and after, what the CPU needs for a step whose device takes no time: no change of the
    # device's work makes it shorter; empty without a device
    host_ms: dict[str, float] = {}

    @property
    def is_certain(self) -> bool:
        """Whether the whole range is faster than the replay, or the whole range slower."""
        low, high = self.range
        return not low <= self.replayed_step_ms <= high


@dataclass(frozen=True, eq=False)
class Baseline:
    """The steps as they were measured, with which every prediction for them is compared.

    Costs that later steps do not pay are left out: no change can save them.

    Args:
        recorded: the graph of the steps as they were recorded.
        delays: events that are left out, too; events.id.
    """

    recorded: Graph
    delays: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    @cached_property
    def steady(self) -> Graph:
        """The graph without one-off costs."""
        return _without_one_off(self.recorded, self.delays)

    @cached_property
    def graph(self) -> Graph:
        """The same at the CPU's pace in steps that nothing records, if it is known."""
        return anchored(self.steady, *unwatched_ms(self.recorded.trace))

    @cached_property
    def host_ms(self) -> float | None:
        """What the CPU needs for a step; None without a device."""
        return host_ms(self.graph) if self.graph.on_device.any() else None

    @cached_property
    def simulation(self) -> Simulation:
        """The unchanged replay."""
        return simulate(self.graph)

    @cached_property
    def measured_ms(self) -> float:
        """Mean of the measured steps."""
        return float(self.recorded.window.measured_ns.mean()) / 1e6

    @property
    def steady_ms(self) -> float:
        """Mean of the measured steps, without one-off costs."""
        return self.measured_ms - self.one_off_ms

    @cached_property
    def one_off_ms(self) -> float:
        """What the steps take longer by costs that are left out, by the replay."""
        if self.steady is self.recorded:
            return 0.0
        return self.measured_ms * (1 - step_ms(self.steady) / step_ms(self.recorded))

    @cached_property
    def device_ms(self) -> tuple[float | None, float | None]:
        """Mean busy and idle time of the busiest device in the measured steps of a rank."""
        steps, window = self.graph.trace["steps"], self.graph.window
        measured = np.isin(steps["step"], window.steps) & np.isin(steps["rank"], self.graph.ranks)
        return mean_device_ms(steps.take(measured))

    @cached_property
    def unexplained(self) -> float:
        """Share of the measured step that no known dependency explains."""
        return max(1 - step_ms(without_unexplained_delays(self.steady)) / self.steady_ms, 0.0)

    @cached_property
    def breakdown(self) -> BusySides:
        """Which side was busy before."""
        return breakdown(self.simulation)

    @cached_property
    def critical_ms(self) -> dict[str, dict[str, float]]:
        """The critical path before."""
        return critical_ms(self.simulation)

    @cached_property
    def memory(self) -> RecordedMemory | None:
        """The recorded allocations; None if those of one rank were not recorded."""
        with suppress(TraceError):
            return recorded_memory(self.graph.trace)
        return None

    def predict_memory(self, requests: Sequence[Request]) -> "MemoryPrediction | None":
        """The peak with the changes; None if it was not recorded or cannot be predicted."""
        with suppress(ChangeError):  # the time is predicted all the same
            return predict_memory(self.memory, self._chosen(requests)) if self.memory else None
        return None

    def _chosen(self, requests: Sequence[Request]) -> list[Request]:
        ordered = sorted(requests, key=lambda request: request.change.order)
        return [request.chosen(self.graph) for request in ordered]

    def predict(self, requests: Sequence[Request]) -> tuple[Prediction, Simulation]:
        """The effect of the changes, by their `order`, on the steps and their memory; raises
        ChangeError if one does not apply, with the reason."""
        requests = self._chosen(requests)
        after, within = self._time_with(requests)
        replayed, predicted = mean_ms(self.simulation), mean_ms(after)
        prediction = Prediction(
            measured_step_ms=self.measured_ms,
            replayed_step_ms=replayed,
            replay_error=self._error,
            predicted_step_ms=predicted,
            speedup=replayed / predicted if predicted else float("inf"),
            range=within,
            changes=tuple(map(str, requests)),
            basis=(
                *(request.change.based_on(self.graph) for request in requests),
                *data_basis(self.graph.trace),
            ),
            assumptions=(
                *_assumptions(self.graph, requests, self.unexplained),
                *([_FULL_QUEUE] if self._free_ms(after) else []),
                *self._of_one_step(after),
            ),
            breakdown={"before": self.breakdown, "after": breakdown(after)},
            critical_path={"before": self.critical_ms, "after": critical_ms(after)},
            device_busy_ms=self.device_ms[0],
            device_idle_ms=self.device_ms[1],
            memory=self.predict_memory(requests),
            one_off_ms=self.one_off_ms,
            host_ms={} if self.host_ms is None else {"before": self.host_ms, "after": host_ms(after.graph)},
        )
        return prediction, after

    def predict_time(self, requests: Sequence[Request]) -> tuple[Simulation, Range]:
        """The steps with the changes, and the range of their length; raises ChangeError if one does
        not apply, with the reason."""
        return self._time_with(self._chosen(requests))

    @cached_property
    def _error(self) -> float:
        """How far the replay is from the measured steps, as a share of them."""
        return step_ms(self.steady) / self.steady_ms - 1

    def _time_with(self, requests: Sequence[Request]) -> tuple[Simulation, Range]:
        after = simulate(_changed(self.graph, requests))
        steps = [mean_ms(after), *_bounds_ms(self.graph, requests), *self._free_ms(after)]
        if any(request.change.group == "Compute" for request in requests):
            steps += self._at_other_paces_ms(after)
        published = (request.change.error_on(self.graph) for request in requests)
        slowdown = _slowdown(self.graph, requests)
        beside = slowdown.error if slowdown else 0.0
        error, spread = max(abs(self._error), self.unexplained, beside, *published), self._spread_ms(after)
        low, high = min(steps), max(steps)
        works = float(busiest_ns(after.graph, counts_cpu=False).mean()) / 1e6  # on one stream, at any time
        least = min(low * (1 - error), max(low - spread, min(low, works)))
        return after, (max(least, 0.0), max(high * (1 + error), high + spread))

    def _spread_ms(self, after: Simulation) -> float:
        """Half of the 95 % confidence interval of the mean gain, which differs from step to step."""
        gains = [(self.simulation.step_ns - after.step_ns).tolist()]
        if len(gains[0]) < 2:
            return 0.0  # what one step does not show is among the assumptions
        if self.graph.on_device.any():
            # A CPU that comes to lead its device moves the ends of steps, which is no difference
            # between them; and between threads the work of a step may be at other times.
            gains.append((self.graph.once(busiest_ns) - busiest_ns(after.graph)).tolist())
        return min(map(error_of_mean, gains)) / 1e6

    def _of_one_step(self, after: Simulation) -> list[str]:
        """What a single step does not show, where that matters."""
        if len(self.graph.window.steps) > 1 or not self.graph.on_device.any():
            return []
        before_ms, after_ms = overlapping_ms(self.simulation), overlapping_ms(after)
        shorter = before_ms < mean_ms(self.simulation) * (1 - _LEAST_OVERLAP)
        shorter |= after_ms < mean_ms(after) * (1 - _LEAST_OVERLAP)
        return [_ONE_STEP.format(before=rounded(before_ms), after=rounded(after_ms))] if shorter else []

    @cached_property
    def _waits_for_room(self) -> bool:
        """Whether the CPU waited for room in a device's queue, and its pace without is not known."""
        return unwatched_ms(self.recorded.trace)[1] is None and waited_for_room(self.recorded)

    @cached_property
    def _paces(self) -> dict[float, float]:
        """The unchanged step on a slower CPU and on a faster one, over that on this one, by their paces."""
        before_ms = mean_ms(self.simulation)
        return {pace: step_ms(at_pace(self.graph, pace)) / before_ms for pace in (OTHER_PACE, 1 / OTHER_PACE)}

    def _at_other_paces_ms(self, after: Simulation) -> list[float]:
        """The step on a slower and on a faster CPU, as far as it then limits another step than before."""
        if not self.graph.on_device.any() or not mean_ms(after):
            return []
        if not shows_cpu(self.graph.trace):
            return [mean_ms(self.simulation)]  # the CPU may need as long as the steps took
        both = (step_ms(at_pace(after.graph, pace)) / usual for pace, usual in self._paces.items())
        return [most(ms, mean_ms(after)) for most, ms in zip((max, min), both, strict=True)]

    def _free_ms(self, after: Simulation) -> list[float]:
        """The step if the CPU is faster without waits for room; nothing where that is no different."""
        if not self._waits_for_room:
            return []
        free_ms = step_ms(at_pace(after.graph, FREE_PACE))
        return [free_ms] if free_ms < mean_ms(after) * (1 - _LEAST_FREE) else []


def _without_one_off(graph: Graph, delays: Rows) -> Graph:
    """The graph in which one-off costs and some other events take no time; their work is gone."""
    left_out = np.zeros(len(graph.trace.events) + 1, np.bool_)  # the last is for no event
    for rank in np.unique(graph.threads["rank"]).tolist():
        left_out[:-1] |= inside(graph.trace, one_off_costs(graph.trace, rank))
    left_out[delays] = True
    tasks = left_out[graph.tasks["event"]] & (graph.tasks["mark"] == 0)
    if not tasks.any():
        return graph
    return remove(scale(_launched_at_once(graph, tasks), tasks, 0.0), tasks & graph.on_device, calls=False)


def _launched_at_once(graph: Graph, calls: Mask) -> Graph:
    """The graph in which work begins as if some tasks, which launch it, had taken no time."""
    source, target, lag = (graph.links[name] for name in ("source", "target", "lag_ns"))
    launches = graph.links.text("kind").mask("launch") & calls[source]
    length = graph.trace.events["duration_ns"][graph.tasks["event"][source]]
    left = np.where(lag >= length, lag - length, np.minimum(lag, _LATENCY_NS))
    lag = np.where(calls[source] & calls[target], np.minimum(lag, 0), np.where(launches, left, lag))
    graph = replace(graph, links=graph.links.with_columns(lag_ns=lag))
    return _without_gaps_before(graph, source[launches], target[launches])


def _without_gaps_before(graph: Graph, call: Ids32, work: Ids32) -> Graph:
    """The graph in which work follows that before it on its stream as soon as after its launch."""
    events, event, thread = graph.trace.events, graph.tasks["event"], graph.tasks["thread"]
    before = np.maximum(work - 1, 0)
    since = events["start_ns"][event[work]] - events.spans(event[call])[1]
    kept = (thread[before] == thread[work]) & (before < work)
    gap = graph.tasks["gap_ns"].copy()
    np.minimum.at(gap, before[kept], np.maximum(since[kept], 0))
    return graph.with_tasks(gap_ns=gap)


def predict(graph: Graph, requests: Sequence[Request]) -> Prediction:
    """The effect of the changes on the graph's steps.

    Args:
        graph: of the steps as they were measured.
        requests: the changes, applied in this order; those of a higher `Change.order` come later.

    Raises:
        ChangeError: if one does not apply, with the reason.
    """
    return Baseline(graph).predict(requests)[0]


def _assumptions(graph: Graph, requests: Sequence[Request], unexplained: float) -> tuple[str, ...]:
    assumed = [_ALWAYS, _TOGETHER if graph.window.rank < 0 else _ALIKE]
    if len(distinct(graph.trace["steps"]["step"])) == 1:
        assumed.append(_NO_OTHER_STEP)
    if unexplained >= _LEAST_UNEXPLAINED:
        assumed.append(f"{unexplained:.1%} of the step is unexplained and kept as is")
    if load := load_warning(graph.trace.metadata.capture_of(graph.window.rank)):
        assumed.append(f"the times of the CPU are typical, although {load}")
    if not shows_cpu(graph.trace):
        assumed.append(_NO_CPU)
    if missing := work_is_missing(graph.trace):
        assumed.append(f"the recorded work is all work, although {missing}")
    if slowdown := _slowdown(graph, requests):
        assumed.append(str(slowdown))
    return (*assumed, *(text for request in requests for text in request.change.assumed(graph)))


def _slowdown(graph: Graph, requests: Sequence[Request]) -> CollectiveSlowdown | None:
    """By collectives, where a change may move them and the recording shows it."""
    moves = any(request.change.group in _MOVES_COLLECTIVES for request in requests)
    return graph.once(beside_collectives) if moves else None


def _changed(graph: Graph, requests: Sequence[Request], side: str = "") -> Graph:
    for request in requests:
        graph = request.apply(graph, getattr(request.change, side) if side else None)
    return graph


def _bounds_ms(graph: Graph, requests: Sequence[Request]) -> list[float]:
    """The step if the changes gain least and most; nothing where that is no different."""
    if not any(request.change.low or request.change.high for request in requests):
        return []
    return in_threads(
        lambda side: step_ms(_changed(graph, requests, side)), ("low", "high"), len(graph), MOST_TASKS
    )


class MemoryPrediction(msgspec.Struct, frozen=True):
    """The effect of some changes on the peak of allocated bytes."""

    device: str  # whose memory
    measured_bytes: int  # the recorded peak
    predicted_bytes: int  # the peak of the changed lifetimes
    error: float | None  # how far such predictions were from measurements, relative; None where none was made
    # changes, and settings of the allocator, whose effect on memory is not known; it counts as none
    unknown: tuple[str, ...] = ()
    reserved_bytes: int | None = None  # what PyTorch's allocator reserves for it; None on a CPU


def changed_lifetimes(memory: RecordedMemory, requests: Sequence[Request]) -> Lifetimes:
    """The allocations with the changes, applied in this order; raises ChangeError if the effect of
    one on these steps cannot be predicted, with the reason."""
    for request in requests:
        change = request.change.memory
        if change is not None:
            taken = inspect.signature(change).parameters
            values = {name: value for name, value in request.values.items() if name in taken}
            memory = change(memory, **values)
    return memory.lifetimes


def predict_memory(memory: RecordedMemory, requests: Sequence[Request]) -> MemoryPrediction:
    """The peak with the changes; raises ChangeError as `changed_lifetimes`."""
    changed, recording = changed_lifetimes(memory, requests), memory.recording
    # They were measured with captures, which record what operators read.
    captured, changes = len(recording.trace["tensor_uses"]), (request.change for request in requests)
    errors = [one.memory_error if captured or not one.memory_error else None for one in changes if one.memory]
    unknown, reserved = [str(request) for request in requests if request.change.memory is None], None
    if recording.device != "cpu":
        settings = Settings.of_trace(recording.trace)
        reserved = replay(repeated(changed), settings).peak_reserved
        unknown += ["garbage_collection_threshold"] * settings.collects
    return MemoryPrediction(
        device=recording.device,
        measured_bytes=memory.lifetimes.peak()[0],
        predicted_bytes=changed.peak()[0],
        error=None if None in errors else max((error or 0.0 for error in errors), default=0.0),
        unknown=tuple(unknown),
        reserved_bytes=reserved,
    )
