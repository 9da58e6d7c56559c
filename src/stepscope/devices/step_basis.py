"""What a step on another device is predicted from: its kernels, or its operations."""

from __future__ import annotations

from typing import Protocol

from stepscope.batch_size.entry_profile import Profile
from stepscope.devices.device_answer import BasisName, RangedValue
from stepscope.devices.device_choice import Target
from stepscope.devices.device_work import find_device_work
from stepscope.devices.offload import COUNTING_ERROR, FAST, SLOW, TYPICAL, offload
from stepscope.graph import Graph, simulate
from stepscope.whatif.changes.batch_size import batch_size
from stepscope.whatif.changes.faster_gpu import faster_gpu
from stepscope.whatif.parts.kernel_times import SCALING_ERROR


class Basis(Protocol):
    """Predicts the step at any batch size on any device."""

    name: BasisName
    sentence: str
    known: float

    def step_ms(self, target: Target, batch: int) -> RangedValue:
        """Length of a step."""

    def graph(self, target: Target, batch: int) -> Graph:
        """The step's graph on the device."""


class MeasuredKernels:
    """Measured kernels, scaled one by one."""

    name: BasisName = "kernels"
    known = 1.0
    sentence = (
        "Each measured kernel is scaled by the peak rates of both devices; CPU times stay. "
        "The range is the largest error between two real devices: kernels took up to "
        f"{SCALING_ERROR} times as long or as short as predicted."
    )

    def __init__(self, graph: Graph, recorded_batch: int, profile: Profile) -> None:
        self._graph, self._recorded, self._profile = graph, recorded_batch, profile

    def step_ms(self, target: Target, batch: int) -> RangedValue:
        """The measured model of run time, by the ratio of both simulated steps."""
        measured = self._profile.predict(batch)
        here = step_ms(self._at(batch))
        value, high, low = (
            step_ms(faster_gpu(self._at(batch), target.name, side)) / here
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
        """The simulated step."""
        value, low, high = (
            step_ms(offload(self._graph, target.rates, batch / self._recorded, estimate))
            for estimate in (TYPICAL, FAST, SLOW)
        )
        return RangedValue(value, low, high)

    def graph(self, target: Target, batch: int) -> Graph:
        """The step with its work on the device."""
        return offload(self._graph, target.rates, batch / self._recorded)


def step_ms(graph: Graph) -> float:
    """Mean length of the simulated steps, ms."""
    return float(simulate(graph).step_ns.mean()) / 1e6
