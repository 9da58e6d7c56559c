"""Memory, time, device and samples of JAX's training steps: the function that returns what its next
call takes ends them.

Memory is XLA's buffer assignment of each program that a step calls, known without running it, and
the arrays that the program holds besides: such as the optimizer's state while gradients are made.
JAX returns before the work is done. While steps are timed, each waits for the results of the
previous one, so a step takes as long as it does on average and the loop still runs ahead of it.

JAX has no data loader. A batch is an argument that no compiled function returned before, with the
batch size as its leading dimension, `(32, 224, 224, 3)`, or as its second one with time first,
`(128, 32)`. Divided among devices or micro-batches, it is `(4, 8, 64)`.
"""

import re
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import jax
from jax import tree_util

from stepscope.errors import CaptureError
from stepscope.record.batch_size.measured_steps import (
    Peak,
    PowerMeter,
    StepCounts,
    Steps,
    cpu_counters,
    main_memory,
)
from stepscope.record.batch_size.request import RunRequest
from stepscope.record.capture_file import write_capture
from stepscope.record.jax import MEMBER
from stepscope.record.jax.jax_step_detector import UNSURE_STEPS, Arrays, JaxStepDetector, arrays_in
from stepscope.record.jax.jax_window import JaxWindow, RunAhead
from stepscope.record.jax.jit_calls import JitCall, JitCallWatch
from stepscope.record.manifest import Run, RunResult, build_manifest
from stepscope.record.options import RecordOptions

_OPTIMIZERS = re.compile(
    r"(?<![A-Za-z])(mu|nu|trace|count|momentum|moments?|velocity|velocities|opt\w*)(?![A-Za-z])"
)
_OPTIONS = RecordOptions(warmup=0, steps=0)
_RUN_IN = 1  # the first step is in progress when recording begins
Json = dict[str, Any]


class ProgramMemory:
    """The most that XLA assigns to a program of a step, with what is held besides it, and its kinds."""

    def __init__(self) -> None:
        self.is_watching = False
        self.bytes = 0
        self.is_exact = True  # whether all programs said what they take
        self.kinds: Json = {}
        self._returned: dict[str, Arrays] = {}  # by the function that returned them last

    def returned(self, call: JitCall) -> None:
        """A call has returned: what it returned is state where another one takes it."""
        if self.is_watching:
            self._look_at(call)
        leaves = tree_util.tree_leaves(call.outputs)
        self._returned[call.name] = Arrays(leaf for leaf in leaves if hasattr(leaf, "sharding"))

    def _look_at(self, call: JitCall) -> None:
        """Bytes on the first device while a program runs."""
        leaves = tree_util.tree_leaves((call.inputs, call.outputs))
        of_call = set(map(id, leaves))
        others = sum(bytes_on_device(array) for array in jax.live_arrays() if id(array) not in of_call)
        try:
            stats = call.memory()
            size = assigned_bytes(stats)
        except Exception:  # of a function compiled ahead of time, nothing is known but its arrays
            self.is_exact, stats = False, None
            size = sum(bytes_on_device(leaf) for leaf in leaves if isinstance(leaf, jax.Array))
        if size + others >= self.bytes:  # of equal ones, the last: more of its state is known
            self.bytes = size + others
            self.kinds = self._kinds(call, stats, others) if stats else {}

    def _kinds(self, call: JitCall, stats: Any, others: int) -> dict[str, int]:
        """Bytes by kind, which add up to the peak."""
        kept = {"parameters": 0, "optimizer_state": 0}
        for path, leaf in tree_util.tree_flatten_with_path(call.inputs)[0]:
            if any(leaf in arrays for arrays in self._returned.values()):
                name = tree_util.keystr(path)
                kind = "optimizer_state" if _OPTIMIZERS.search(name) else "parameters"
                kept[kind] += size_on_device(leaf)
        inputs = int(stats.argument_size_in_bytes) - sum(kept.values())
        if not kept["optimizer_state"]:
            kept = {"state": kept["parameters"]}
        return {
            **kept,
            "inputs": max(inputs, 0),
            "results": int(stats.output_size_in_bytes - stats.alias_size_in_bytes),
            "temporaries": int(stats.temp_size_in_bytes),
            "others": others,
        }


def size_on_device(array: Any) -> int:
    """Bytes of an array on one of the devices that it is on, also after it was donated."""
    return int(array.dtype.itemsize * prod(array.sharding.shard_shape(array.shape)))


class RecordedPrograms:
    """One capture, from the step in which recording begins to the step after the last.

    The program's own profiler takes precedence: there is no capture then.
    """

    def __init__(self, request: RunRequest) -> None:
        assert request.capture is not None
        self._command = [request.entry, *request.arguments]
        self._path = Path(request.capture)
        self._window: JaxWindow | None = None
        self._step = 0

    def start(self, step: int) -> None:
        self._step = step
        try:
            self._window = JaxWindow(_OPTIONS, step + _RUN_IN, None, _RUN_IN)
            self._window.start()
        except CaptureError:
            self._window = None

    def step_ended(self, outputs: Any, *, is_last: bool) -> None:
        """A call that ends a step has returned; after the last, write what was recorded.

        The step after the last must have begun: its call shows where the last one ends.
        """
        window = self._window
        if window is None:
            return
        if is_last and window.complete:
            self._window = None
            window.close(drain=True)
            if not window.was_preempted:
                self._write(window)
        else:
            window.end_step(outputs)

    def _write(self, window: JaxWindow) -> None:
        steps = list(window.complete)
        result = RunResult("complete", "recorded", steps[-1] + 1, steps)
        manifest = build_manifest(Run(self._command, _OPTIONS), result, "jax")
        write_capture(self._path, manifest, {"roots": []}, {MEMBER: window.export})


def assigned_bytes(stats: Any) -> int:
    """What a program takes of its device: arguments, results, temporaries; donated ones once."""
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


class JaxSteps(Steps):
    """Measured steps that know the program's compiled functions."""

    why_no_steps = "no function under jax.jit was called repeatedly in its process"

    def __init__(self, request: RunRequest, finish: Callable[[Json], object]) -> None:
        counts = StepCounts()
        super().__init__(request, finish, counts)
        self._recording = RecordedPrograms(request) if request.capture else None
        self.least_memory_steps = 2 if self._recording else 1  # it begins within the first
        self._ahead = RunAhead()
        self._memory = ProgramMemory()
        self._batches = BatchSamples(counts, request.batch)
        self._detector = JaxStepDetector()
        self._boundary: object = None
        self._outputs: Any = ()
        JitCallWatch(self._returned)

    def begin_memory(self, step: int) -> None:
        self._memory.is_watching = True
        if self._recording:
            self._recording.start(step)

    def end_memory_step(self, *, last: bool) -> None:
        self._memory.is_watching = not last

    def peak(self) -> Peak:
        return Peak(self._memory.bytes)

    def power_meter(self) -> PowerMeter:
        """RAPL's counters on a CPU; JAX does not say which counters its GPUs have."""
        on_cpu = jax.local_devices()[0].platform == "cpu"
        return PowerMeter("RAPL", cpu_counters()) if on_cpu else PowerMeter("NVML", [])

    def facts(self) -> Json:
        return {
            "framework": "jax",
            "device": _device(),
            "exact": self._memory.is_exact,
            "memory": self._memory.kinds,
        }

    @property
    def trains(self) -> bool:
        return self._boundary is not None

    @property
    def unsure_steps(self) -> int:
        return 0 if self._detector.is_sure else UNSURE_STEPS

    def restart(self) -> None:
        """Another function ends the steps: what was measured were parts of them."""
        self.forget_measured()
        super().restart()

    def ended(self) -> None:
        """A training step ends here; the next one may not run further ahead."""
        self._ahead.step_ended(self._outputs)
        if self._recording:
            self._recording.step_ended(self._outputs, is_last=not self._memory.is_watching)
        self._batches.step_ended()
        super().ended()

    def _returned(self, call: JitCall) -> None:
        if self._clock is not None:  # steps are timed now, and nothing else should take time
            self._batches.returned_again(call)
        else:
            self._memory.returned(call)
            self._batches.returned(call)
        self._outputs = call.outputs
        ends = self._detector.advance(call.name, call.inputs, call.outputs)
        if self._boundary is not self._detector.boundary:
            self._boundary = self._detector.boundary
            self.restart()
        if ends and self.detects:
            self.ended()


class StepArgument(NamedTuple):
    """One array that a step takes: its shape, and whether the previous step took it too."""

    shape: tuple[int, ...]
    is_kept: bool = False


class BatchSamples:
    """Counts the samples in the batches that the calls of a step take, each batch once."""

    def __init__(self, counts: StepCounts, batch: int) -> None:
        self._counts, self._batch = counts, batch
        self._returned = Arrays()
        self._state_shapes: set[tuple[int, ...]] = set()
        self._of_call: dict[str, int] = {}
        self._taken = Arrays()  # by the running step
        self._before = Arrays()  # by the previous step

    def returned(self, call: JitCall) -> None:
        leaves = [leaf for leaf in tree_util.tree_leaves(call.inputs) if hasattr(leaf, "shape")]
        state = [leaf for leaf in leaves if leaf in self._returned]
        self._state_shapes.update(leaf.shape for leaf in state)
        # No function returned it, nor is it shaped as state, such as summed gradients.
        others = (leaf for leaf in leaves if leaf not in self._returned and leaf not in self._taken)
        fresh = [leaf for leaf in others if leaf.shape not in self._state_shapes]
        self._returned.update(arrays_in(call.outputs))
        arguments = [StepArgument(leaf.shape, leaf in self._before) for leaf in fresh]
        self._of_call[call.name] = samples_in(arguments, self._batch)
        self._taken.update(fresh)
        self.returned_again(call)

    def returned_again(self, call: JitCall) -> None:
        """The same where steps are timed: the call takes what its function took before."""
        self._counts.add_samples(self._of_call.get(call.name, 0))

    def step_ended(self) -> None:
        """The batches of the next step are others, even if they are the same arrays."""
        self._before, self._taken = self._taken, Arrays()
        self._returned.forget_gone()


def samples_in(arguments: Sequence[StepArgument], batch: int) -> int:
    """The samples that a call takes; 0 if no argument is a batch.

    An array that every step takes may be a whole data set, so it counts only if its size is the
    batch size itself.

    Example:
        >>> [samples_in([StepArgument(shape)], 32) for shape in [(32, 9), (4, 8, 9), (64, 9), (7,)]]
        [32, 32, 64, 0]
        >>> samples_in([StepArgument((4, 32, 9)), StepArgument((4, 32))], 32)  # inputs and their targets
        128
        >>> samples_in([StepArgument((128, 32)), StepArgument((128, 32))], 32)  # time first
        32
    """
    shapes = [argument.shape for argument in arguments if argument.shape]
    pairs = [shape[:2] for shape in shapes if len(shape) > 1]
    if any(shape[0] == batch for shape in shapes) or batch in [a * b for a, b in pairs]:
        return batch
    if second := [shape for shape in shapes if len(shape) > 1 and shape[1] == batch]:
        groups = second[0][0]
        ranks = {len(shape) for shape in second if shape[0] == groups}
        return groups * batch if len(ranks) > 1 else batch
    changing = [argument.shape[0] for argument in arguments if argument.shape and not argument.is_kept]
    return max((size for size in changing if size % batch == 0), default=0)
