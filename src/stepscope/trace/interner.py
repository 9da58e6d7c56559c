"""Numbers for values in order of first appearance: how a list of distinct values is made."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Value = TypeVar("Value", bound=Hashable)


class Interner(dict[Value, int]):
    """Distinct values, each with a number; `list(interner)` is the values by their numbers.

    Example:
        >>> names = Interner()
        >>> [names[name] for name in ("mm", "add", "mm")], list(names)
        ([0, 1, 0], ['mm', 'add'])
    """

    def __missing__(self, value: Value) -> int:
        code = self[value] = len(self)
        return code

    def codes(self, values: Iterable[Value], count: int = -1) -> NDArray[np.int32]:
        """The number of each value, int32.

        Args:
            values: any.
            count: how many there are, where that is known: it saves time.
        """
        return np.fromiter(map(self.__getitem__, values), np.int32, count)
