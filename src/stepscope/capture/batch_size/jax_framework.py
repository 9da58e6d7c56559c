"""Memory, time and device of JAX's training steps.

Memory is XLA's buffer assignment of each program that a step calls, known without running it, and
the arrays that the program holds besides: such as the optimizer's state while gradients are made.
JAX returns before the work is done. While steps are timed, each waits for the results of the
previous one, so a step takes as long as it does on average and the loop still runs ahead of it.

The steps in which memory is looked at can be recorded, for predictions of other devices.
"""

from __future__ import annotations

from typing import Any

import jax
from jax import tree_util

from stepscope.capture.batch_size.assigned_memory import ProgramMemory, size_on_device
from stepscope.capture.batch_size.energy_counters import PowerMeter, cpu_counters
from stepscope.capture.batch_size.framework import Peak, main_memory
from stepscope.capture.batch_size.recorded_programs import RecordedPrograms
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_clock import StepClock
from stepscope.capture.jax.jax_window import RunAhead
from stepscope.capture.jax.jit_calls import JitCall

Json = dict[str, Any]


class JaxFramework:
    """Measures what XLA assigns to the programs of a step.

    Args:
        request: whether to record the memory steps as a capture; by default not.
    """

    def __init__(self, request: Request | None = None) -> None:
        self._recording = RecordedPrograms(request) if request and request.capture else None
        self.least_memory_steps = 2 if self._recording else 1  # it begins within the first
        self._ahead = RunAhead()
        self._bytes = 0
        self._is_watching = False
        self._exact = True
        self._programs = ProgramMemory()
        self._kinds: Json = {}

    def returned(self, call: JitCall) -> None:
        """A compiled function has returned; in steps with memory, its peak counts."""
        if self._is_watching:
            self._look_at(call)
        self._programs.returned(call)

    def step_ended(self, outputs: Any) -> None:
        """Keep the loop from running further ahead."""
        self._ahead.step_ended(outputs)
        if self._recording:
            self._recording.step_ended(outputs, is_last=not self._is_watching)

    def begin_memory(self, step: int) -> None:
        """Look at the programs that are called from now on."""
        self._is_watching = True
        if self._recording:
            self._recording.start(step)

    def end_memory_step(self, *, last: bool) -> None:
        """A step whose programs are looked at ends here."""
        self._is_watching = not last

    def peak(self) -> Peak:
        """The program that needs most, with what is held besides it."""
        return Peak(self._bytes)

    def clock(self) -> StepClock:
        """A clock of steps that wait for each other."""
        return StepClock()

    def power_meter(self) -> PowerMeter:
        """RAPL's counters on a CPU; JAX does not say which counters its GPUs have."""
        on_cpu = jax.local_devices()[0].platform == "cpu"
        return PowerMeter("RAPL", cpu_counters()) if on_cpu else PowerMeter("NVML", [])

    def facts(self) -> Json:
        """What ran, and on what."""
        return {
            "framework": "jax",
            "version": str(jax.__version__),
            "device": _device(),
            "threads": None,
            "exact": self._exact,
            "memory": self._kinds,
        }

    def _look_at(self, call: JitCall) -> None:
        """Bytes on the first device while a program runs."""
        known = {id(leaf) for leaf in tree_util.tree_leaves((call.inputs, call.outputs))}
        others = [array for array in jax.live_arrays() if id(array) not in known]
        besides = sum(map(bytes_on_device, others))
        try:
            stats = call.memory()
            size = assigned_bytes(stats)
        except Exception:  # of a function compiled ahead of time, nothing is known but its arrays
            self._exact, stats = False, None
            leaves = tree_util.tree_leaves((call.inputs, call.outputs))
            size = sum(bytes_on_device(leaf) for leaf in leaves if isinstance(leaf, jax.Array))
        if size + besides >= self._bytes:  # of equal ones, the last: more of its state is known
            self._bytes = size + besides
            self._kinds = self._programs.kinds(call, stats, besides) if stats else {}


def assigned_bytes(stats: Any) -> int:
    """What a program takes of its device: arguments, results, temporaries; donated ones once.

    Args:
        stats: as `Compiled.memory_analysis()` returns it.
    """
    return int(
        stats.argument_size_in_bytes
        + stats.output_size_in_bytes
        - stats.alias_size_in_bytes
        + stats.temp_size_in_bytes
    )


def bytes_on_device(array: Any) -> int:
    """Bytes of an array on one of the devices that it is on; 0 if it was donated."""
    return 0 if array.is_deleted() else size_on_device(array)


def _device() -> Json:
    device = jax.local_devices()[0]
    if device.platform == "cpu":
        return {"type": "cpu", "name": None, "memory_bytes": main_memory()}
    limit = (device.memory_stats() or {}).get("bytes_limit")
    kind = "cuda" if device.platform == "gpu" else device.platform
    return {"type": kind, "name": device.device_kind, "memory_bytes": limit}
