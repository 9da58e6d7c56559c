"""Assigns codes to distinct values in order of first appearance."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np

from stepscope.arrays import Ids32

Value = TypeVar("Value", bound=Hashable)


class Interner(dict[Value, int]):
    """Codes of distinct values; `list(interner)` gives the values by code.

    Example:
        >>> names = Interner()
        >>> [names[name] for name in ("mm", "add", "mm")], list(names)
        ([0, 1, 0], ['mm', 'add'])
    """

    def __missing__(self, value: Value) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[Value], count: int = -1) -> Ids32:
        """The code of each value, int32.

        Args:
            values: the values.
            count: their number, if known; it saves time.
        """
        return np.fromiter(map(self.__getitem__, values), np.int32, count)
