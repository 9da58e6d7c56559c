"""What each step took in: how many samples, and how large inputs."""

from __future__ import annotations

_ALIKE = 0.95


class StepCounts:
    """Samples and elements of the inputs of each step, where something counts them.

    Attributes:
        samples: of each step, 0 where nothing counts them.
        sizes: elements of the inputs of each step, None where nothing counts them.
    """

    def __init__(self) -> None:
        self.samples: list[int] = []
        self.sizes: list[int | None] = []
        self._samples = 0
        self._size: int | None = None

    def add_samples(self, count: int) -> None:
        """The running step took some samples."""
        self._samples += count

    def add_inputs(self, elements: int) -> None:
        """The running step took inputs of a size."""
        self._size = (self._size or 0) + elements

    def end_step(self) -> None:
        """A step ends here."""
        self.samples.append(self._samples)
        self.sizes.append(self._size)
        self._samples, self._size = 0, None

    def forget(self) -> None:
        """What came before does not count: the first steps may have been misdetected."""
        self.samples.clear()
        self.sizes.clear()

    @property
    def range(self) -> tuple[int, int]:
        """The least and the most elements, of the steps known."""
        known = [size for size in self.sizes if size is not None]
        return min(known, default=0), max(known, default=0)

    @property
    def varied(self) -> bool:
        """Whether some steps were clearly shorter than others."""
        least, most = self.range
        return least < _ALIKE * most

    def is_long(self, size: int | None) -> bool:
        """Whether a step of this size is among the longest, as far as is known."""
        return size is None or size >= _ALIKE * self.range[1]
