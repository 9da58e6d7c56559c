"""How the data loaders of this process load: what a trace does not tell."""

from __future__ import annotations

import weakref
from typing import Any

from torch.utils.data import dataloader

_Iterator: Any = dataloader._BaseDataLoaderIter
_FACTS = {
    "workers": "_num_workers",
    "pin_memory": "_pin_memory",
    "prefetch_factor": "_prefetch_factor",
    "persistent_workers": "_persistent_workers",
}


class LoaderWatch:
    """Remembers the iterators of data loaders made since it was installed, as long as they live."""

    def __init__(self) -> None:
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()
        self._original = _Iterator.__init__
        iterators, original = self._iterators, self._original

        def watched(iterator: Any, loader: Any) -> None:
            iterators.add(iterator)
            original(iterator, loader)

        self._watched = watched
        _Iterator.__init__ = watched

    def remove(self) -> None:
        """Leave torch as it was; what is remembered stays."""
        if _Iterator.__init__ is self._watched:
            _Iterator.__init__ = self._original

    @property
    def are_in_use(self) -> bool:
        """Whether the program keeps one, to ask it for more."""
        return len(self._iterators) > 0

    def describe(self) -> list[dict[str, Any]]:
        """The loaders that are in use, those with most workers first."""
        found = [
            {name: getattr(one, attribute, None) for name, attribute in _FACTS.items()}
            for one in self._iterators
        ]
        return sorted(found, key=lambda facts: -(facts["workers"] or 0))
