"""Memory of a training step without computing it, on fake tensors.

On the CPU device only: with a fake `cuda` and no GPU, torch's backward ends the process. What a GPU's kernels
would choose otherwise (cuDNN's workspaces) is therefore not in it; what is known of them is in `as_gpu`.
"""

import itertools
import os
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.record.batch_size.kernel_workspace import OneDnnLstm, with_workspace, workspace
from stepscope.record.batch_size.measured_steps import StepCounts
from stepscope.record.batch_size.request import RunRequest
from stepscope.record.batch_size.torch_steps import WHY_NO_STEPS, count_samples
from stepscope.record.memory.memory_recorder import kept_tensors, tensors_in
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry

_SCALAR = torch.ops.aten._local_scalar_dense.default
Json = dict[str, Any]
_Module: Any = torch.nn.Module
_graph_task: Any = torch._C._current_graph_task_id
_KIND_OF_STORAGE = {
    "parameter": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer_state",
}
_KINDS = (*_KIND_OF_STORAGE.values(), "activations", "temporaries")


@dataclass(frozen=True, eq=False)
class StorageEntry:
    """A storage: its size, when in the step it was made, and by the call of which module."""

    key: int
    bytes: int
    phase: str
    module: str


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every storage that operators return until it is freed, with phase and module (`where`)."""

    def __init__(self, where: Callable[[], tuple[str, str]], as_gpu: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        self._as_gpu = as_gpu
        self.history: list[tuple[StorageEntry, int]] = []  # its bytes, -1 where it is freed
        self._alive: dict[int, StorageEntry] = {}
        self._watchers: dict[int, Any] = {}
        self._begun = 0

    def begin_step(self) -> None:
        """Look for the peak from now on."""
        self._begun = len(self.history)

    def at_peak(self) -> list[StorageEntry]:
        """What is held when most is, the first time since the step began."""
        sizes = [entry.bytes if size >= 0 else -entry.bytes for entry, size in self.history]
        levels = [*itertools.accumulate(sizes, initial=0)][self._begun :]
        upto = self._begun + levels.index(max(levels))
        held: dict[StorageEntry, None] = {}
        for entry, size in self.history[:upto]:
            if size >= 0:
                held[entry] = None
            else:
                del held[entry]
        return list(held)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func is _SCALAR:
            return _some_value(args[0])
        result = func(*args, **(kwargs or {}))
        result = with_workspace(func, args, result, self._as_gpu)
        if not self._as_gpu and (size := workspace(func, args, result)):  # held until the results are there
            entry = StorageEntry(0, size, "workspace", self._where()[1])
            self.history += [(entry, size), (entry, -1)]
        for tensor in tensors_in(result):
            self.note(tensor)
        return result

    def note(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or not (size := storage.nbytes()):
            return
        phase, module = self._where()
        self._alive[key] = StorageEntry(key, size, phase, module)
        self._watchers[key] = weakref.ref(storage, lambda _: self._freed(key))
        self.history.append((self._alive[key], size))

    def entry_of(self, tensor: Any) -> StorageEntry | None:
        return self._alive.get(tensor.untyped_storage()._cdata)

    def _freed(self, key: int) -> None:
        self._watchers.pop(key, None)
        entry = self._alive.pop(key, None)
        if entry is not None:
            self.history.append((entry, -1))


def _some_value(tensor: Any) -> Any:
    """There is no value. Most scripts only log it; optimizers take a count of steps from
    it, which must not be zero; a condition (is it NaN?) is seldom true."""
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


class Estimate:
    """Steps on fake tensors: the first makes optimizer state, the second is like all that follow, and
    what the third holds at its peak is listed."""

    why_no_steps = WHY_NO_STEPS
    detects = trains = True

    def __init__(self, request: RunRequest, finish: Callable[[Json], object]) -> None:
        self._request = request
        self._finish = finish
        self._registry = ModuleRegistry()
        self._ranges = ModuleRanges(self._registry)
        self._optimizers: dict[int, Any] = {}
        self._stepping = False
        self._owners: dict[StorageEntry, tuple[str, str]] = {}
        self._ledger = Ledger(self._where, request.as_gpu)
        self._counts = StepCounts()
        count_samples(self._counts)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.count = 0
        self._start()

    def _start(self) -> None:
        """From now on nothing computes."""
        _Module._apply = _apply
        _stay_in_this_process()
        torch.save = lambda *_, **__: None  # no values are there to save
        torch_optimizer.register_optimizer_step_pre_hook(partial(self._set_stepping, True))
        torch_optimizer.register_optimizer_step_post_hook(partial(self._set_stepping, False))
        self._ranges.install()
        modes: list[Any] = [self._fake, self._ledger, OneDnnLstm()]
        if self._request.as_gpu:
            modes.append(OnCpu())
            keep_as_gpu()
        for mode in modes:
            mode.__enter__()
        _teach_fake_tensors()

    def begin_iterations(self, model: Any, inputs: Any) -> None:
        """Iterations of this model follow; whoever makes them calls `ended`."""
        self.detects = False
        self._registry.add_root(model, "model")

    def ended(self) -> None:
        self.count += 1
        self._counts.end_step()
        self._note_owners()
        if self.count < 3:
            self._ledger.begin_step()
        else:
            self._finish(self.result())

    def result(self) -> Json:
        if self.count < 3:
            return {"outcome": "too_short", "steps_seen": self.count}
        rows = [(*self._judge(entry), entry.bytes) for entry in self._ledger.at_peak()]
        modules = _by_module(rows)
        return {
            "outcome": "estimated",
            "samples": self._counts.samples[-1:],
            "bytes": sum(size for *_, size in rows),
            "memory": {kind: sum(module[kind] for module in modules) for kind in _KINDS},
            "modules": modules,
            "history": [(entry.key, size) for entry, size in self._ledger.history if self._request.as_gpu],
            "allocator": os.environ.get("PYTORCH_ALLOC_CONF")
            or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            "autocast": bool(autocasts),
        }

    def optimizer_stepped(self, optimizer: Any) -> None:
        """Its state counts as such; with one more than was known, all begins again."""
        if id(optimizer) not in self._optimizers:
            self.count = 0
        self._optimizers[id(optimizer)] = optimizer

    # -- what is what

    def _where(self) -> tuple[str, str]:
        module = self._ranges.running.path
        if self._stepping:
            return "optimizer", module
        return ("forward" if _graph_task() == -1 else "backward"), module

    def _set_stepping(self, stepping: bool, *_: object) -> None:
        self._stepping = stepping

    def _note_owners(self) -> None:
        """Kind and module of the storages that training keeps, while they are there."""
        for row, tensor in kept_tensors(self._registry, self._optimizers.values(), {}):
            entry = self._ledger.entry_of(tensor)
            if entry is not None:
                self._owners.setdefault(entry, (_KIND_OF_STORAGE[row["kind"]], row["path"]))

    def _judge(self, entry: StorageEntry) -> tuple[str, str]:
        phase = "activations" if entry.phase == "forward" else "temporaries"
        return self._owners.get(entry, (phase, entry.module))


def _by_module(rows: list[tuple[str, str, int]]) -> list[Json]:
    """Modules by what they hold themselves, without those inside them."""
    sums: dict[str, dict[str, int]] = {}
    for kind, path, size in rows:
        own = sums.setdefault(path, dict.fromkeys(_KINDS, 0))
        own[kind] += size
    return [{"path": path, **own, "bytes": sum(own.values())} for path, own in sums.items()]


def _apply(self: Any, fn: Callable[[Any], Any], recurse: bool = True) -> Any:
    """`Module.to` and its like; torch's own would swap tensors, which fake ones cannot."""
    for module in self.children() if recurse else ():
        module._apply(fn)
    for name, parameter in self._parameters.items():
        if parameter is not None:
            with torch.no_grad():
                changed = fn(parameter)
            if changed is not parameter:
                self._parameters[name] = torch.nn.Parameter(changed, parameter.requires_grad)
    for name, buffer in self._buffers.items():
        if buffer is not None:
            self._buffers[name] = fn(buffer)
    return self


def _teach_fake_tensors() -> None:
    """A script may format its loss, and copy its layers.

    torch's own deep copy gives a fake tensor one storage and its views another.
    """
    fake: Any = FakeTensor
    fake.__format__ = lambda self, spec: format(self.item(), spec) if spec else "fake"
    fake.__deepcopy__ = _deep_copy


def _deep_copy(tensor: Any, memo: dict[int, Any]) -> Any:
    if id(tensor) not in memo:
        copy = tensor.detach().clone()
        is_parameter = isinstance(tensor, torch.nn.Parameter)
        wrap = torch.nn.Parameter if is_parameter else torch.Tensor.requires_grad_
        memo[id(tensor)] = wrap(copy, tensor.requires_grad)
    return memo[id(tensor)]


def _stay_in_this_process() -> None:
    """Fake tensors cannot cross from a loader's worker."""
    loader: Any = torch.utils.data.DataLoader
    original = loader.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        alone = {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False, "pin_memory": False}
        original(self, *args, **{**kwargs, **{k: alone[k] for k in alone if k in kwargs}})

    loader.__init__ = init


# -- a script as it runs on a GPU, on a machine without one


# Source: PyTorch, docs/source/amp.md, "CUDA Ops that can autocast to float32": those of the CPU are fewer.
_FP32 = (
    "__pow__ binary_cross_entropy_with_logits cross_entropy exp group_norm layer_norm log log_softmax "
    "mse_loss nll_loss norm pow softmax sum"
)
_OWNERS = (torch, F, torch.Tensor)
_IN_FP32 = {getattr(owner, name, None) for owner in _OWNERS for name in _FP32.split()} - {None}
autocasts: list[str] = []  # that began, by the device that was asked for
_autocast: Any = torch.autocast.__init__
_attention: Any = F.scaled_dot_product_attention
_CHOICE = "_default_to_fused_or_foreach"  # of each optimizer's module, by the device of its weights
_ON_GPU = (torch.Tensor.cuda, torch.Tensor.pin_memory)


def keep_as_gpu() -> None:
    """From now on this process calls what keeps as much as the kernels of a GPU do."""
    functional: Any = F
    functional.dropout = _dropout
    functional.scaled_dot_product_attention = _attention_of_one_kernel
    autocast: Any = torch.autocast
    autocast.__init__ = _autocast_on_cpu
    cuda: Any = torch.cuda
    cuda.synchronize = cuda.set_device = lambda *_: None
    optimizers: list[Any] = [each for name, each in sys.modules.items() if name.startswith("torch.optim.")]
    for module in optimizers:
        if hasattr(module, _CHOICE):
            setattr(module, _CHOICE, lambda *_, **__: (False, True))


class OnCpu(TorchFunctionMode):
    """Leaves on the CPU what a script sends to a GPU; autocast keeps in FP32 what it keeps there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func in _ON_GPU:
            return args[0]
        if func in _IN_FP32 and torch.is_autocast_enabled("cpu"):
            args = [_in_fp32(value) for value in args]
        named = {name: _on_cpu(value) for name, value in (kwargs or {}).items() if name != "pin_memory"}
        return func(*map(_on_cpu, args), **named)


def _autocast_on_cpu(self: Any, device_type: str = "cuda", *args: Any, **others: Any) -> None:
    autocasts.append(device_type)
    _autocast(self, "cpu", *args, **others)


def _in_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def _on_cpu(value: Any) -> Any:
    device = str(value) if isinstance(value, str | torch.device) else ""
    return torch.device("cpu") if device.partition(":")[0] == "cuda" else value


def _dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    if not (training and p):
        return input
    result = torch.native_dropout(input, p, True)[0]
    return input.copy_(result) if inplace else result


def _attention_of_one_kernel(query: Any, key: Any, value: Any, *args: Any, **others: Any) -> Any:
    others |= dict(zip(("attn_mask", "dropout_p", "is_causal"), args, strict=False))
    return _attention(query, key, value, **{**others, "dropout_p": 0.0})
