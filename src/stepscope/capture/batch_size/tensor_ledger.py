"""What each operator's results occupy, kept up to date as tensors come and go.

A dispatch mode above FakeTensorMode: no operator computes, so a model may be larger than the
machine. What kernels allocate for themselves and free before they return is not seen, only
reckoned where it is much (`workspace`).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stepscope.capture.batch_size.fake_lstm import with_workspace
from stepscope.capture.batch_size.kernel_workspace import workspace

_SCALAR = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True, eq=False)
class Entry:
    """A storage: its size, when in the step it was made, and by the call of which module."""

    key: int
    bytes: int
    phase: str
    module: str


class Ledger(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes every storage that an operator returns, until it is freed.

    Args:
        where: returns the phase (forward, backward or optimizer) and the path of the module that
            runs.
    """

    def __init__(self, where: Callable[[], tuple[str, str]]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._where = where
        self._alive: dict[int, Entry] = {}
        self._watchers: dict[int, Any] = {}
        self._wanted: int | None = None
        self._count = 0
        self.total = 0
        self.peak = 0
        self.peak_at = 0
        self.snapshot: tuple[Entry, ...] = ()

    def begin_step(self, look_at: int | None = None) -> None:
        """Count allocations and look for the peak again.

        Args:
            look_at: the allocation after which to take the snapshot.
        """
        self._count, self._wanted = 0, look_at
        self.peak, self.peak_at = self.total, 0
        self.snapshot = tuple(self._alive.values()) if look_at == 0 else ()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if func is _SCALAR:
            return _some_value(args[0])
        result = func(*args, **(kwargs or {}))
        result = with_workspace(func, args, result)
        self._use(workspace(func, args, result))
        for tensor in _tensors(result):
            self.note(tensor)
        return result

    def _use(self, size: int) -> None:
        """An operator holds so much until its results are there."""
        if not size:
            return
        self._count += 1
        if self.total + size > self.peak:
            self.peak, self.peak_at = self.total + size, self._count
        if self._count == self._wanted:
            own = Entry(0, size, "workspace", self._where()[1])
            self.snapshot = (*self._alive.values(), own)

    def note(self, tensor: Any) -> None:
        """A tensor is there."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or not (size := storage.nbytes()):
            return
        phase, module = self._where()
        self._alive[key] = Entry(key, size, phase, module)
        self._watchers[key] = weakref.ref(storage, lambda _: self._freed(key))
        self.total += size
        self._count += 1
        if self.total > self.peak:
            self.peak, self.peak_at = self.total, self._count
        if self._count == self._wanted:
            self.snapshot = tuple(self._alive.values())

    def entry_of(self, tensor: Any) -> Entry | None:
        """What is noted of a tensor's storage."""
        return self._alive.get(tensor.untyped_storage()._cdata)

    def _freed(self, key: int) -> None:
        self._watchers.pop(key, None)
        entry = self._alive.pop(key, None)
        if entry is not None:
            self.total -= entry.bytes


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _tensors(one)


def _some_value(tensor: Any) -> Any:
    """There is no value. Most scripts only log it; optimizers take a count of steps from
    it, which must not be zero; a condition (is it NaN?) is seldom true."""
    if tensor.dtype == torch.bool:
        return False
    return 1.0 if tensor.dtype.is_floating_point else 1
