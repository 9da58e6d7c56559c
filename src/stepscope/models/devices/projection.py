"""A profiled entry file on other devices: the basis of its steps, and the predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

from stepscope.errors import BatchError, ChangeError
from stepscope.facts.annotate import annotate
from stepscope.facts.roofline.rates import data_sheets_date
from stepscope.graph import Graph, build_graph
from stepscope.models.batch_size.entry_profile import Profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.devices.device_answer import (
    BasisName,
    DevicePrediction,
    DeviceRow,
    DevicesAnswer,
    MeasuredEnergy,
    RangedValue,
    RankPrediction,
    Target,
)
from stepscope.models.devices.device_work import (
    COUNTING_ERROR,
    FAST,
    SLOW,
    TYPICAL,
    find_device_work,
    offload,
)
from stepscope.models.whatif.anchor import step_ms
from stepscope.models.whatif.changes.batch_size import batch_size
from stepscope.models.whatif.changes.ddp import CHANGE as DDP
from stepscope.models.whatif.changes.faster_gpu import HOST_ERROR, faster_gpu
from stepscope.models.whatif.parts.kernel_times import SCALING_ERROR
from stepscope.read import read


class MeasuredKernels:
    """Measured kernels, scaled one by one."""

    name: BasisName = "kernels"
    known = 1.0
    sentence = (
        "Each measured kernel is scaled by the peak rates of both devices; CPU times stay. The range is the "
        f"largest error between two real devices: kernels took up to {SCALING_ERROR} times as long or as "
        f"short as predicted; and the CPU of another machine, {HOST_ERROR} times."
    )

    def __init__(self, graph: Graph, recorded_batch: int, profile: Profile) -> None:
        self._graph, self._recorded, self._profile = graph, recorded_batch, profile

    def step_ms(self, target: Target, batch: int) -> RangedValue:
        """The measured model of run time, by the ratio of both simulated steps."""
        measured = self._profile.predict(batch)
        here = step_ms(self._at(batch))
        value, high, low = (
            step_ms(faster_gpu(self._at(batch), target.name, estimate=side)) / here
            for side in ("typical", "low", "high")
        )
        least, most = measured["ms_range"]
        return RangedValue(measured["ms"] * value, least * low, most * high)

    def graph(self, target: Target, batch: int) -> Graph:
        """The kernels of the recorded step, scaled to the batch size and the device."""
        return faster_gpu(self._at(batch), target.name)

    def _at(self, batch: int) -> Graph:
        return batch_size(self._graph, batch / self._recorded)


class CountedOperations:
    """Operations and bytes of a step on a CPU."""

    name: BasisName = "operations"

    def __init__(self, graph: Graph, recorded_batch: int) -> None:
        self._graph, self._recorded = graph, recorded_batch
        self.known = find_device_work(graph).known
        self.sentence = (
            f"The step ran on a CPU. Its operations (known for {self.known:.0%} of its time) are "
            "counted, at half of the device's peak rates, plus 10 us of CPU time per kernel, or "
            "per call of a function under jax.jit. The range is the largest error in real traces: "
            f"kernels {COUNTING_ERROR} times as long or as short; and 5 to 40 us per launch."
        )

    def step_ms(self, target: Target, batch: int) -> RangedValue:
        value, low, high = (
            step_ms(offload(self._graph, target.rates, batch / self._recorded, estimate))
            for estimate in (TYPICAL, FAST, SLOW)
        )
        return RangedValue(value, low, high)

    def graph(self, target: Target, batch: int) -> Graph:
        """The step with its work on the device."""
        return offload(self._graph, target.rates, batch / self._recorded)


Basis = MeasuredKernels | CountedOperations
"""Predicts the step at any batch size on any device."""


_MS_PER_HOUR = 3.6e6  # milliseconds in an hour


@dataclass(frozen=True)
class Wanted:
    """What to predict."""

    # Batch sizes; by default the present one, half and twice of it, and the suggested one, as far as
    # predictions are trusted.
    batches: tuple[int, ...] = ()
    samples: int = 1_000_000  # number of samples for hours and prices
    ranks: int = 1  # the largest number of data-parallel ranks; 1 for none
    bandwidth_gbps: float = 10.0  # of the links between them, Gbit/s


def project(result: Result, targets: Sequence[Target], wanted: Wanted) -> DevicesAnswer:
    """Predict a profiled entry file, whose capture must still be there, on other devices; raises
    BatchError if no step was recorded, or too few of its operations are known."""
    if result.capture is None or result.profile.time is None:
        raise BatchError("other devices cannot be predicted: no step was recorded")
    graph = build_graph(annotate(read(result.capture)))
    batch = result.captured_batch or result.entry.batch
    try:
        on_device = graph.on_device.any()
        basis: Basis = (
            MeasuredKernels(graph, batch, result.profile) if on_device else CountedOperations(graph, batch)
        )
        return Projection(result, basis, wanted).answer(targets)
    except ChangeError as error:
        raise BatchError(f"other devices cannot be predicted: {error}") from error


@dataclass(frozen=True)
class Projection:
    """Predictions of one profiled entry file."""

    result: Result
    basis: Basis
    wanted: Wanted

    def answer(self, targets: Sequence[Target]) -> DevicesAnswer:
        return DevicesAnswer(
            self.basis.name,
            self.basis.sentence,
            self.basis.known,
            self.wanted.samples,
            data_sheets_date(),
            self.wanted.bandwidth_gbps if self.wanted.ranks > 1 else None,
            self._measured_energy(),
            [self._row(target) for target in targets],
        )

    def _measured_energy(self) -> MeasuredEnergy | None:
        profile, batch = self.result.profile, self.result.entry.batch
        counter = profile.device.get("energy_counter")
        for point in profile.points:
            if point.batch == batch and point.joules and point.watts and counter:
                return MeasuredEnergy(batch, point.joules, point.watts, counter)
        return None

    def _row(self, target: Target) -> DeviceRow:
        ranks, problem = self._scaling(target)
        return DeviceRow(
            target.name,
            target.watts,
            target.usable_bytes,
            target.instance,
            [self._prediction(target, batch) for batch in self._batches()],
            ranks,
            problem,
        )

    def _batches(self) -> list[int]:
        if self.wanted.batches:
            return sorted(set(self.wanted.batches))
        profile, batch = self.result.profile, self.result.entry.batch
        others = {max(batch // 2, 1), 2 * batch, profile.suggestion() or batch}
        return sorted({batch} | {size for size in others if profile.trusts(size)})

    def _samples(self, batch: int) -> float:
        return self.result.profile.samples_per_batch * batch

    def _prediction(self, target: Target, batch: int) -> DevicePrediction:
        ms = self.basis.step_ms(target, batch)
        memory = self.result.bytes_on_device(batch)
        samples = self._samples(batch)
        watts = target.watts
        return DevicePrediction(
            batch,
            self.result.profile.extrapolates(batch),
            ms,
            ms.inverse(1e3 * samples),
            memory and RangedValue(*memory),
            self.result.fit(batch, target.usable_bytes),
            ms.times(watts / 1e3 / samples) if watts else None,
            ms.times(self.wanted.samples / samples / _MS_PER_HOUR),
            self._usd(target, ms, samples),
        )

    def _usd(self, target: Target, ms: RangedValue, samples: float, devices: int = 1) -> RangedValue | None:
        """Price of the wanted samples, if a step of `samples` occupies some devices for `ms`."""
        if target.instance is None:
            return None
        hours = ms.times(self.wanted.samples / samples / _MS_PER_HOUR)
        return hours.times(devices * target.instance.usd_per_device_hour)

    def _scaling(self, target: Target) -> tuple[list[RankPrediction], str | None]:
        if self.wanted.ranks < 2:
            return [], None
        batch = self.result.entry.batch
        counts = {*(2**power for power in range(1, self.wanted.ranks.bit_length())), self.wanted.ranks}
        graph, single = self.basis.graph(target, batch), self.basis.step_ms(target, batch)
        try:
            rows = [self._rank(target, graph, single, count) for count in sorted(counts)]
        except ChangeError as error:
            return [], str(error)
        return rows, None

    def _rank(self, target: Target, graph: Graph, single: RangedValue, ranks: int) -> RankPrediction:
        together = DDP.apply(graph, workers=ranks, bandwidth_gbps=self.wanted.bandwidth_gbps)
        slower = step_ms(together) / step_ms(graph)
        low, high = single.low * slower * (1 - DDP.error), single.high * slower * (1 + DDP.error)
        ms = RangedValue(single.value * slower, low, high)
        samples = ranks * self._samples(self.result.entry.batch)
        usd = self._usd(target, ms, samples, ranks)
        return RankPrediction(ranks, ms, ms.inverse(1e3 * samples), 1 / slower, usd)
