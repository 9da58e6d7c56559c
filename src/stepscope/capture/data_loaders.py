"""How the data loaders of this process load, which a trace does not show."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import dataloader

from stepscope.capture.patch import replace

_Iterator: Any = dataloader._BaseDataLoaderIter
_ATTRIBUTES = {
    "workers": "_num_workers",
    "pin_memory": "_pin_memory",
    "prefetch_factor": "_prefetch_factor",
    "persistent_workers": "_persistent_workers",
}


class LoaderWatch:
    """Tracks the iterators of data loaders created since it was installed, while they live."""

    def __init__(self) -> None:
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        iterators, original = self._iterators, _Iterator.__init__

        def watched(iterator: Any, loader: Any) -> None:
            iterators.add(iterator)
            original(iterator, loader)

        self._restore = replace(_Iterator, "__init__", watched)

    def remove(self) -> None:
        """Leave torch as it was; known iterators stay known."""
        self._restore()

    @property
    def are_in_use(self) -> bool:
        """Whether the program still holds an iterator."""
        return len(self._iterators) > 0

    def describe(self) -> list[dict[str, Any]]:
        """The loaders in use, the one with most workers first."""
        found = [
            {name: getattr(iterator, attribute, None) for name, attribute in _ATTRIBUTES.items()}
            for iterator in self._iterators
        ]
        return sorted(found, key=lambda facts: -(facts["workers"] or 0))
