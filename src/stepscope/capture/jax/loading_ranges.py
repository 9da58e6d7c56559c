"""Ranges around each request of the training loop for a batch, while steps are recorded.

The loaders are those of torch, grain and tf.data, as far as the program has imported them. Their
iterators may ask each other, one for each element of a batch, also in threads that load ahead: the
outermost request on the main thread counts.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stepscope.capture.patch import replace

# Name as torch.profiler gives it; module and class of iterators, with all classes derived from it.
_ITERATORS = (
    ("DataLoader", "torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("grain", "grain._src.python.data_loader", "DataLoaderIterator"),
    ("grain", "grain._src.python.dataset.dataset", "DatasetIterator"),
    ("tf.data", "tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
    ("tf.data", "tensorflow.python.data.ops.dataset_ops", "NumpyIterator"),
)


class LoadingRanges:
    """Ranges around each request for a batch, named as torch.profiler names them, until closed."""

    def __init__(self) -> None:
        self._restore: list[Callable[[], None]] = []
        self._is_asking = False
        for loader, module, name in _ITERATORS:
            base = getattr(sys.modules.get(module), name, None)
            for iterator in _with_derived(base) if isinstance(base, type) else ():
                if callable(original := vars(iterator).get("__next__")):
                    ours = self._around(original, loader)
                    self._restore.append(replace(iterator, "__next__", ours))

    def close(self) -> None:
        """Leave the loaders as they were."""
        while self._restore:
            self._restore.pop()()

    def _around(self, original: Any, loader: str) -> Any:
        @functools.wraps(original)
        def watched(iterator: Any) -> Any:
            if self._is_asking or threading.current_thread() is not threading.main_thread():
                return original(iterator)
            self._is_asking = True
            try:
                name = f"enumerate({loader})#{type(iterator).__name__}.__next__"
                with jax.profiler.TraceAnnotation(name):
                    return original(iterator)
            finally:
                self._is_asking = False

        return watched


def _with_derived(base: type[Any]) -> Iterator[type[Any]]:
    """A class and all classes derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from _with_derived(derived)
