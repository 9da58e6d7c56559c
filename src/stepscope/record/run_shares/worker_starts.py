"""How often the run starts workers of its DataLoaders, and what that costs the training loop."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, dataloader

from stepscope.record.patch import undo
from stepscope.record.torch_internals import Function, wrap

_Batches: Any = dataloader._BaseDataLoaderIter


@dataclass
class WorkerTimes:
    """What the training loop waits for in iterators with workers, ns."""

    starts: int = 0  # iterators that start workers
    workers: int = 0  # of the iterator that has most
    starting_ns: int = 0  # until the workers are started
    first: int = 0  # the first batch of each worker
    first_ns: int = 0  # for these
    stopping_ns: int = 0  # at the end of each, until its workers have stopped
    batches: int = 0  # later ones
    waiting_ns: int = 0  # for these


class WorkerWatch:
    """Measures the starts of workers in the thread that made it, until it detaches.

    Args:
        now: the clock of the run, ns.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._thread = threading.get_ident()
        self._times = WorkerTimes()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._made = 0
        self._datasets: set[int] = set()
        self._restore = [*wrap(DataLoader, "__iter__", self._epoch), *wrap(_Batches, "__next__", self._batch)]

    def detach(self) -> None:
        undo(self._restore)

    def describe(self) -> dict[str, int] | None:
        """For manifest.json; None if nothing started workers.

        `loaders` are those that did, `datasets` theirs: fewer if a loader is made for every epoch.
        """
        if not self._times.starts:
            return None
        return {**vars(self._times), "loaders": self._made, "datasets": len(self._datasets)}

    def _epoch(self, original: Function) -> Function:
        def __iter__(loader: Any) -> Any:
            if not loader.num_workers or threading.get_ident() != self._thread:
                return original(loader)
            before, begun = getattr(loader, "_iterator", None), self._now()
            iterator = original(loader)
            if iterator is not before:
                self._started(loader, self._now() - begun)
            return iterator

        return __iter__

    def _started(self, loader: Any, spent_ns: int) -> None:
        self._times.starts += 1
        self._times.starting_ns += spent_ns
        self._times.workers = max(self._times.workers, loader.num_workers)
        if loader not in self._loaders:
            self._loaders.add(loader)
            self._made += 1
            self._datasets.add(id(loader.dataset))

    def _batch(self, original: Function) -> Function:
        def next_batch(iterator: Any) -> Any:
            if not getattr(iterator, "_num_workers", 0) or threading.get_ident() != self._thread:
                return original(iterator)
            # Each worker makes its first batch as soon as it has started.
            is_first, begun = iterator._num_yielded < iterator._num_workers, self._now()
            try:
                result = original(iterator)
            except StopIteration:
                self._times.stopping_ns += self._now() - begun
                raise
            self._received(is_first, self._now() - begun)
            return result

        return next_batch

    def _received(self, is_first: bool, spent_ns: int) -> None:
        if is_first:
            self._times.first += 1
            self._times.first_ns += spent_ns
        else:
            self._times.batches += 1
            self._times.waiting_ns += spent_ns
