"""Names, in the profile of a JAX program, the time that it waits for a DataLoader of PyTorch."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax


class LoadingRanges:
    """Ranges around each request for a batch, named as torch.profiler names them, until closed."""

    def __init__(self) -> None:
        module = sys.modules.get("torch.utils.data.dataloader")
        self._iterator: Any = getattr(module, "_BaseDataLoaderIter", None)
        if self._iterator is not None:
            self._original = self._iterator.__next__
            self._watched = self._around(self._original)
            self._iterator.__next__ = self._watched

    def close(self) -> None:
        """Leave torch as it was."""
        if self._iterator is not None and self._iterator.__next__ is self._watched:
            self._iterator.__next__ = self._original

    def _around(self, original: Any) -> Any:
        @functools.wraps(original)
        def watched(iterator: Any) -> Any:
            name = f"enumerate(DataLoader)#{type(iterator).__name__}.__next__"
            with jax.profiler.TraceAnnotation(name):
                return original(iterator)

        return watched
