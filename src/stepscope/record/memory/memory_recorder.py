"""What `stepscope run --memory` records next to torch.profiler's allocations."""

from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stepscope.record.call_sites import user_frames
from stepscope.record.capture_file import Member
from stepscope.record.memory.out_of_memory import AllocationFailure
from stepscope.record.module_registry import ModuleRegistry
from stepscope.record.patch import ignoring, replace
from stepscope.record.profiler_window import profiler_events
from stepscope.record.ranges import Range
from stepscope.record.recording import Recording

Json = dict[str, Any]


class MemoryRecorder:
    """Lines of the user's code for each operator, and what training keeps from step to step."""

    def __init__(self, registry: ModuleRegistry) -> None:
        self._registry = registry
        self._optimizers: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lines = LineRanges()
        self._table = CpuTable()
        self.cuda = CudaHistory()
        self._creations = Creations()
        self._before: list[Json] = []

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Its state counts as such."""
        self._optimizers.add(optimizer)

    def start(self) -> None:
        self._creations.close()
        self._before = self.storages()
        self._lines.start()

    def stop(self) -> list[Json]:
        """The recorded steps are over; what is kept now."""
        self._lines.stop()
        return self.storages()

    def members(self, after: list[Json], profiler: Any) -> dict[str, Member]:
        """The members of the capture, once the profiler has stopped."""
        return self._members(self._before, after, uses=tensor_uses(profiler))

    def members_at_failure(
        self, failed: AllocationFailure, storages: list[Json], recording: Recording | None
    ) -> dict[str, Member]:
        """The members of a capture that ends with an out-of-memory error."""
        recorded = recording.members.get("memory.json") if recording else None
        if isinstance(recorded, dict):
            return {"memory.json": {**recorded, "out_of_memory": asdict(failed)}}
        return self._members([], storages, out_of_memory=asdict(failed))

    def _members(self, before: list[Json], after: list[Json], **more: Json) -> dict[str, Member]:
        members: dict[str, Member] = {"memory.json": {**memory_json(before, after), **more}}
        if self.cuda.has_events:
            members["snapshot.pickle"] = self.cuda.write
        return members

    def storages(self) -> list[Json]:
        return list_storages(self._registry, list(self._optimizers), self._creations.lines)

    def detach(self) -> None:
        """Leave torch as it was, but keep the history of CUDA for the capture."""
        self._lines.stop()
        self._creations.close()
        self._table.stop()

    def close(self) -> None:
        """The capture is written: keep nothing."""
        self.detach()
        self._before = []
        self.cuda.close()


def memory_json(before: list[Json], after: list[Json]) -> Json:
    """The capture's `memory.json` of storages before and after the recorded steps."""
    return {"format": "stepscope memory", "version": 1, "storages": {"before": before, "after": after}}


def list_storages(
    registry: ModuleRegistry, optimizers: Iterable[Any], made_at: MadeAt, inputs: Any = ()
) -> list[Json]:
    """Each storage that training keeps from step to step, once, as a row of `memory.json`."""
    rows: dict[tuple[str, int], Json] = {}
    for row, tensor in kept_tensors(registry, optimizers, made_at):
        _add(rows, tensor, row)
    for tensor in tensors_in(inputs):
        _add(rows, tensor, _row("input", "", ""))
    return list(rows.values())


def kept_tensors(
    registry: ModuleRegistry, optimizers: Iterable[Any], made_at: MadeAt
) -> Iterator[tuple[Json, Any]]:
    """The tensors that training keeps from step to step, with what they are; some several times."""
    owners: dict[int, tuple[str, str]] = {}
    for row, tensor in _of_models(registry, made_at):
        owners.setdefault(id(tensor), (row["path"], row["name"]))
        yield row, tensor
        if tensor.is_leaf and tensor.grad is not None:  # to ask others for a gradient warns
            yield {**row, "kind": "gradient", "lines": []}, tensor.grad
    yield from _of_optimizers(optimizers, owners)


def _of_models(registry: ModuleRegistry, made_at: MadeAt) -> Iterator[tuple[Json, Any]]:
    for node in registry.nodes():
        module = node.module
        for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
            for name, tensor in held.items():
                if tensor is not None:
                    yield _row(kind, node.path, name, made_at.get((id(module), name), [])), tensor


def _of_optimizers(
    optimizers: Iterable[Any], owners: dict[int, tuple[str, str]]
) -> Iterator[tuple[Json, Any]]:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                path, name = owners.get(id(parameter), ("", ""))
                yield _row("parameter", path, name), parameter
                if parameter.grad is not None:
                    yield _row("gradient", path, name), parameter.grad
        for parameter, state in optimizer.state.items():
            path, name = owners.get(id(parameter), ("", ""))
            for tensor in tensors_in(state):
                yield _row("optimizer_state", path, name), tensor


_DEEPEST = 6  # batches and states nest a few lists and dicts; a deeper value is none


def tensors_in(value: Any, depth: int = 0) -> Iterator[Any]:
    """The tensors in a value, lists and dicts included, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif depth < _DEEPEST:
        if hasattr(value, "values") and callable(value.values):
            value = list(value.values())
        for part in value if isinstance(value, list | tuple) else ():
            yield from tensors_in(part, depth + 1)


def _row(kind: str, path: str, name: str, lines: Any = ()) -> Json:
    return {"kind": kind, "path": path, "name": name, "lines": list(lines)}


def _add(rows: dict[tuple[str, int], Json], tensor: Any, row: Json) -> None:
    with ignoring(RuntimeError, ValueError):  # without a storage of its own: sparse, a subclass, not yet made
        storage, device = tensor.untyped_storage(), str(tensor.device)
        address, size = storage.data_ptr(), storage.nbytes()
        if size:
            rows.setdefault((device, address), {"address": address, "bytes": size, "device": device, **row})


def tensor_uses(profiler: Any) -> Json:
    """The tensors of every operator that a stopped torch.profiler recorded.

    The exported trace names their shapes, but not the memory they lie in; only the tree of events
    that the process keeps has it. With it the analysis knows what each allocation is for, and until
    when it is needed. Source: torch/profiler/_memory_profiler.py.

    The profiler recorded with `record_shapes` and `profile_memory`. Columns of one length are
    `time_ns` (when the operator began), `address` (of the storage), `shape` and `dtype`, positions in
    the lists `shapes` and `dtypes`.
    """
    columns: Json = {"time_ns": [], "address": [], "shape": [], "dtype": []}
    shapes: dict[tuple[int, ...], int] = {}
    dtypes: dict[str, int] = {}
    for event in profiler_events(profiler):
        kind, fields = event.typed
        if "TorchOp" not in str(kind):
            continue
        for tensor in _operands(fields.inputs):
            columns["time_ns"].append(event.start_time_ns)
            columns["address"].append(tensor.storage_data_ptr)
            columns["shape"].append(shapes.setdefault(tuple(tensor.sizes), len(shapes)))
            columns["dtype"].append(dtypes.setdefault(str(tensor.dtype).removeprefix("torch."), len(dtypes)))
    return {**columns, "shapes": [*map(list, shapes)], "dtypes": [*dtypes]}


def _operands(inputs: Any) -> Iterator[Any]:
    for value in inputs:
        if isinstance(value, list):
            yield from _operands(value)
        elif getattr(value, "storage_data_ptr", None):
            yield value


# -- what torch's own allocators record: the CPU's table of totals, and the history of CUDA

_FLAG = "FLAGS_caffe2_report_cpu_memory_usage"
_LIBRARIES = ("libc10.so", "libc10.dylib", "c10.dll")


class CpuTable:
    """The CPU allocator's own table of what is allocated.

    torch keeps it while the flag `caffe2_report_cpu_memory_usage` is set, and reports the total
    with each allocation to a profiler that asks for memory. Made before anything is allocated, it
    makes these totals absolute, whatever thread allocates. It costs about 1 µs for each allocation,
    so it is stopped before steps are timed.

    Source: c10/core/CPUAllocator.cpp (ProfiledCPUMemoryReporter).
    """

    def __init__(self) -> None:
        self._flag = _find_flag()
        self.exact = self._flag is not None  # whether totals are absolute: this build of torch has the flag
        if self.exact:
            self._flag.value = True

    def stop(self) -> None:
        """From now on allocating costs nothing more, and totals mean nothing."""
        if self.exact:
            self._flag.value = False


def _find_flag() -> Any:
    folder = Path(torch.__file__).parent / "lib"
    for name in _LIBRARIES:
        with ignoring(OSError, ValueError):
            return ctypes.c_bool.in_dll(ctypes.CDLL(str(folder / name)), _FLAG)
    return None


_MOST_EVENTS = 200_000  # of the ring: some steps of a large model
_cuda: Any = torch.cuda


class CudaHistory:
    """Records allocations on every CUDA device from the moment at which the script first uses one.

    It is a ring of events with their Python stacks. A script that never uses CUDA is left alone:
    starting it here would break forked workers.

    Source: torch/cuda/memory.py (`_record_memory_history`, `_dump_snapshot`).
    """

    def __init__(self) -> None:
        self.has_events = self._is_closed = False
        _cuda._lazy_call(self._start)  # not asked whether it is there, which initializes the driver

    def _start(self) -> None:
        if self._is_closed:
            return
        with ignoring(Exception):  # else the program's own first use of CUDA fails
            _cuda.memory._record_memory_history(
                enabled="all", context="all", stacks="python", max_entries=_MOST_EVENTS
            )
            self.has_events = True

    def write(self, path: Path) -> None:
        """Write the history and the state of every segment, a pickle, to `path`."""
        _cuda.memory._dump_snapshot(str(path))

    def close(self) -> None:
        self._is_closed = True
        if self.has_events:
            self.has_events = False
            _cuda.memory._record_memory_history(enabled=None)


# -- which lines of the user's code an operator runs for, as ranges in the trace

LINES_PREFIX = "stepscope.lines: "
MadeAt = dict[tuple[int, str], list[tuple[str, int]]]  # lines by the module's id and the parameter's name
_MOST_FRAMES = 64  # frames that a label names
_Mode: Any = TorchFunctionMode
_Module: Any = torch.nn.Module
_overrides: Any = torch.overrides


class LineRanges(TorchFunctionMode):
    """Opens a range around every call of torch's API, in the thread that entered it.

    It is named by the lines that led to it, outermost first. Lines inside torch and inside stepscope are
    left out.
    """

    def __init__(self) -> None:
        super().__init__()
        self._labels: dict[tuple[Any, ...], str] = {}
        self._entered = False

    def start(self) -> None:
        self._entered = True
        _Mode.__enter__(self)

    def stop(self) -> None:
        """No more of them; leaves a mode of the script's that lies on top where it is."""
        modes = _overrides._get_current_function_mode_stack()
        if self._entered and modes and modes[-1] is self:
            _Mode.__exit__(self, None, None, None)
        self._entered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        has_none = not self._entered or torch.compiler.is_compiling() or _marks_a_range(func)
        frames = [] if has_none else places_above(sys._getframe(1))
        if not frames:  # a call of ours
            return func(*args, **(kwargs or {}))
        with Range(self._label(frames)):
            return func(*args, **(kwargs or {}))

    def _label(self, frames: list[tuple[CodeType, int]]) -> str:
        key = tuple((id(code), line) for code, line in frames)
        if key not in self._labels:
            lines = (f"{_absolute(code.co_filename)}:{line}" for code, line in reversed(frames))
            self._labels[key] = LINES_PREFIX + "|".join(lines)
        return self._labels[key]


def _marks_a_range(func: Any) -> bool:
    """Whether a function is the profiler's own, which opens or closes a range."""
    packet = getattr(func, "_overloadpacket", func)
    return getattr(packet, "_qualified_op_name", "").startswith("profiler::")


def places_above(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Code and line of the frames outside torch and stepscope, innermost first."""
    places = ((one.f_code, one.f_lineno) for one in user_frames(frame, _MOST_FRAMES))
    return [place for place in places if not place[0].co_filename.startswith("<")]


def _absolute(file: str) -> str:
    return os.path.abspath(file)  # noqa: PTH100, `Path.absolute` keeps `..`


class Creations:
    """The lines that made each parameter, noted as modules register them."""

    def __init__(self) -> None:
        self.lines: MadeAt = {}
        original, creations = _Module.register_parameter, self

        def register_parameter(module: Any, name: str, param: Any) -> None:
            original(module, name, param)
            if param is not None:
                frames = places_above(sys._getframe(1))
                creations.lines[id(module), name] = [
                    (_absolute(code.co_filename), line) for code, line in reversed(frames)
                ]

        self.close = replace(_Module, "register_parameter", register_parameter)
