"""Memory of a training step without computing it, on fake tensors.

On the CPU device only: with a fake `cuda` and no GPU, torch's backward ends the process. What a
GPU's kernels would choose otherwise (cuDNN's workspaces) is therefore not in it; what is known of
them is in `as_gpu`.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.record.batch_size.as_gpu import OnCpu, autocasts, keep_as_gpu
from stepscope.record.batch_size.kernel_workspace import OneDnnLstm, with_workspace, workspace
from stepscope.record.batch_size.request import Request
from stepscope.record.batch_size.torch_steps import WHY_NO_STEPS, tensors_in, watch_optimizers
from stepscope.record.memory.memory_recorder import kept_tensors
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
        self.history: list[tuple[int, int]] = []  # a storage and its bytes, -1 where it is freed
        self._alive: dict[int, StorageEntry] = {}
        self._watchers: dict[int, Any] = {}
        self._wanted: int | None = None
        self._count = 0
        self.total = 0
        self.peak = 0
        self.peak_at = 0
        self.snapshot: tuple[StorageEntry, ...] = ()

    def begin_step(self, look_at: int | None = None) -> None:
        """Look for the peak again; take the snapshot after the allocation number `look_at`."""
        self._count, self._wanted = 0, look_at
        self.peak, self.peak_at = self.total, 0
        self.snapshot = tuple(self._alive.values()) if look_at == 0 else ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func is _SCALAR:
            return _some_value(args[0])
        result = func(*args, **(kwargs or {}))
        result = with_workspace(func, args, result, self._as_gpu)
        if not self._as_gpu:
            self._use(workspace(func, args, result))
        for tensor in tensors_in(result):
            self.note(tensor)
        return result

    def _use(self, size: int) -> None:
        """An operator holds so much until its results are there."""
        if size:
            self._hold(self.total + size, StorageEntry(0, size, "workspace", self._where()[1]))

    def note(self, tensor: Any) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or not (size := storage.nbytes()):
            return
        phase, module = self._where()
        self._alive[key] = StorageEntry(key, size, phase, module)
        self._watchers[key] = weakref.ref(storage, lambda _: self._freed(key))
        self.history.append((key, size))
        self.total += size
        self._hold(self.total)

    def _hold(self, size: int, *workspaces: StorageEntry) -> None:
        """After one more allocation so many bytes are held, with what only an operator holds."""
        self._count += 1
        if size > self.peak:
            self.peak, self.peak_at = size, self._count
        if self._count == self._wanted:
            self.snapshot = (*self._alive.values(), *workspaces)

    def entry_of(self, tensor: Any) -> StorageEntry | None:
        return self._alive.get(tensor.untyped_storage()._cdata)

    def _freed(self, key: int) -> None:
        self._watchers.pop(key, None)
        entry = self._alive.pop(key, None)
        if entry is not None:
            self.history.append((key, -1))
            self.total -= entry.bytes


def _some_value(tensor: Any) -> Any:
    """There is no value. Most scripts only log it; optimizers take a count of steps from
    it, which must not be zero; a condition (is it NaN?) is seldom true."""
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1


class Estimate:
    """Steps on fake tensors: the first makes optimizer state, the second finds the peak, the third
    lists what is there at that moment."""

    why_no_steps = WHY_NO_STEPS
    detects = True

    def __init__(self, request: Request, finish: Callable[[Json], object]) -> None:
        self._request = request
        self._finish = finish
        self.registry = ModuleRegistry()
        self._ranges = ModuleRanges(self.registry)
        self._optimizers: dict[int, Any] = {}
        self._stepping = False
        self._owners: dict[StorageEntry, tuple[str, str]] = {}
        self._ledger = Ledger(self._where, request.as_gpu)
        self._fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.count = 0
        self._start()

    def _start(self) -> None:
        """From now on nothing computes."""
        _Module._apply = _apply
        _stay_in_this_process()
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

    def ended(self) -> None:
        self.count += 1
        self._note_owners()
        if self.count == 1:
            self._ledger.begin_step()
        elif self.count == 2:
            self._ledger.begin_step(look_at=self._ledger.peak_at)
        else:
            self._finish(self.result())

    def result(self) -> Json:
        if self.count < 3:
            return {"outcome": "too_short", "steps_seen": self.count}
        rows = [(*self._judge(entry), entry.bytes) for entry in self._ledger.snapshot]
        modules = _by_module(rows)
        return {
            "outcome": "estimated",
            "batch": self._request.batch,
            "bytes": self._ledger.peak,
            "memory": {kind: sum(module[kind] for module in modules) for kind in _KINDS},
            "modules": modules,
            "history": self._ledger.history if self._request.as_gpu else [],
            "autocast": bool(autocasts),
            "torch": str(torch.__version__),
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
        for row, tensor in kept_tensors(self.registry, self._optimizers.values(), {}):
            entry = self._ledger.entry_of(tensor)
            if entry is not None:
                self._owners.setdefault(entry, (_KIND_OF_STORAGE[row["kind"]], row["path"]))

    def _judge(self, entry: StorageEntry) -> tuple[str, str]:
        phase = "activations" if entry.phase == "forward" else "temporaries"
        return self._owners.get(entry, (phase, entry.module))


def estimate(request: Request, finish: Callable[[Json], NoReturn]) -> Json:
    """Run three steps on fake tensors; `finish` ends the process."""
    if request.providers:
        _providers(request, finish)
    from stepscope.record.batch_size.measured_script import run_steps

    return run_steps(request, {"torch": lambda: watch_optimizers(Estimate(request, finish))})


def _providers(request: Request, finish: Callable[[Json], NoReturn]) -> NoReturn:
    from stepscope.record.batch_size.measured_script import prepare
    from stepscope.record.optimizers import OptimizerWatch

    run = Estimate(request, finish)
    OptimizerWatch(run.optimizer_stepped)
    model, _, iterate = prepare(request)
    run.registry.add_root(model, "model")
    while True:
        iterate()
        run.ended()


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
                own = torch.nn.Parameter(changed, parameter.requires_grad)
                self._parameters[name] = own
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
