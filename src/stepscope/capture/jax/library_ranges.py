"""Ranges around calls of libraries that load batches or save checkpoints, while steps are recorded.

Only libraries that the program has imported are watched. Iterators of loaders may ask each other,
one for each element of a batch, also in threads that load ahead: the outermost call on the main
thread counts.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax

from stepscope.capture.patch import replace, shadow_builtin

# Name as torch.profiler gives it; module and class of iterators, with all classes derived from it.
_LOADERS = (
    ("DataLoader", "torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("grain", "grain._src.python.data_loader", "DataLoaderIterator"),
    ("grain", "grain._src.python.dataset.dataset", "DatasetIterator"),
    ("tf.data", "tensorflow.python.data.ops.iterator_ops", "OwnedIterator"),
    ("tf.data", "tensorflow.python.data.ops.dataset_ops", "NumpyIterator"),
)
# Asks for each batch by the built-in `next`, whatever loads it: arrays, datasets, generators.
_KERAS = "keras.src.backend.jax.trainer"
# Module, class or nothing, and functions that write to a disk.
_SAVERS = (
    ("pickle", "", ("dump",)),
    ("numpy", "", ("savez", "savez_compressed")),
    ("orbax.checkpoint", "Checkpointer", ("save",)),
    ("orbax.checkpoint", "CheckpointManager", ("save",)),
    ("flax.training.checkpoints", "", ("save_checkpoint", "save_checkpoint_multiprocess")),
    ("equinox", "", ("tree_serialise_leaves",)),
    ("safetensors.flax", "", ("save_file",)),
    ("safetensors.numpy", "", ("save_file",)),
)


class LibraryRanges:
    """Ranges named as those of PyTorch programs, until closed."""

    def __init__(self) -> None:
        self._restore: list[Callable[[], None]] = []
        self._is_inside = False
        for loader, module, name in _LOADERS:
            base = getattr(sys.modules.get(module), name, None)
            for iterator in _with_derived(base) if isinstance(base, type) else ():
                label = f"enumerate({loader})#{iterator.__name__}.__next__"
                self._watch(iterator, "__next__", label)
        keras = sys.modules.get(_KERAS)
        if keras is not None and not hasattr(keras, "next"):
            ours = self._around(next, "enumerate(keras)#next")
            self._restore.append(shadow_builtin(keras, "next", ours))
        for module, name, functions in _SAVERS:
            holder = sys.modules.get(module)
            for function in functions if holder is not None else ():
                label = ".".join(filter(None, (module, name, function)))
                owner = getattr(holder, name, None) if name else holder
                self._watch(owner, function, f"stepscope.checkpointing: {label} ()")

    def close(self) -> None:
        """Leave the libraries as they were."""
        while self._restore:
            self._restore.pop()()

    def _watch(self, holder: Any, name: str, label: str) -> None:
        original = vars(holder).get(name) if hasattr(holder, "__dict__") else None
        if callable(original):
            self._restore.append(replace(holder, name, self._around(original, label)))

    def _around(self, original: Any, label: str) -> Any:
        @functools.wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            if self._is_inside or threading.current_thread() is not threading.main_thread():
                return original(*args, **kwargs)
            self._is_inside = True
            try:
                with jax.profiler.TraceAnnotation(label):
                    return original(*args, **kwargs)
            finally:
                self._is_inside = False

        return watched


def _with_derived(base: type[Any]) -> Iterator[type[Any]]:
    """A class and all classes derived from it."""
    yield base
    for derived in base.__subclasses__():
        yield from _with_derived(derived)
