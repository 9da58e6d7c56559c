"""Why ranks work longer than the others, from their kernels and from what they receive."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.arrays import Floats
from stepscope.ranks.job_table import JobTable
from stepscope.ranks.kernel_times import by_step
from stepscope.ranks.sketch import Sketch
from stepscope.ranks.slow_steps import SlowSteps
from stepscope.trace.recorded_steps import QUIET

_LEAST_SHARE = 0.03  # of a kernel's time
_ALIKE = 0.35  # of the excess: kernels that differ by less are slower alike
_BY_OTHERS = 0.5  # of the excess: if waiting for a core explains as much, it is the cause
_EXPLAINED = 0.3  # of the excess: below, kernels do not explain it
OF_STAGE = {
    "data_loading": "its batches arrive late",
    "host": "its CPU launches work later than the others'",
}
_SLOWER = "slower {} (all {}s alike)"
_DEVICE, _CPU = _SLOWER.format("device", "kernel"), _SLOWER.format("CPU", "operator")
_THROTTLED = f"{_DEVICE}, as one that throttles"
_MACHINE = "slower machine (its CPU launches later, and all kernels take longer alike)"


class Kernels:
    """The kernels of all ranks in some steps.

    Args:
        table: the ranks.
        rows: the slow ones, by position.
        steps: those concerned.
    """

    def __init__(self, table: JobTable, rows: Sequence[int], steps: SlowSteps) -> None:
        self.rows, self._sketches, when = rows, table.sketches, steps.when
        self._grows = steps.grows
        self._slow = set(rows)
        self._times = [
            _times(one, np.array(place)[when], bool(when.all()))
            for one, place in zip(table.sketches, table.places, strict=True)
        ]

    def cause(self, excess_ms: float, excess: float, received: Floats) -> str:
        """Why the slow ranks compute longer.

        Args:
            excess_ms: how much longer, over all stages that are.
            excess: the same as a share of what others take.
            received: bytes of all-to-all per step, shape (ranks,).
        """
        tokens = self._ratio(received)
        if tokens > 1 + _ALIKE * min(excess, 1):
            return (
                f"all-to-all brings it {tokens:.3g} times the bytes of the others: imbalanced "
                "expert"
            )
        ratios = self._ratios()
        return self._by_kernels(excess_ms, ratios) if ratios else "its own work takes longer"

    def _by_kernels(self, excess_ms: float, ratios: Mapping[str, tuple[float, float]]) -> str:
        first = self._sketches[self.rows[0]]
        work = "kernel" if first.device or first.idle else "operator"
        longer = self._longer_ms()
        if longer < _EXPLAINED * excess_ms:
            return f"in Python or waiting (no {work} takes longer)"
        values = np.array([ratio for ratio, _ in ratios.values()])
        if len(values) >= 3 and _are_alike(values):
            return (_THROTTLED if self._grows else _DEVICE) if work == "kernel" else _CPU
        extra = {name: (ratio - 1) * each for name, (ratio, each) in ratios.items()}
        name = max(extra, key=lambda one: extra[one])
        if extra[name] > _EXPLAINED * longer:
            return f"mostly {name}"
        return f"more work (as many ms per {work}, more {work}s)"

    def _longer_ms(self) -> float:
        """How much longer the kernels of slow ranks take than those of the others, per step."""
        total = np.array([
            sum(one.kernels[name][0] * each for name, each in times.items())
            for one, times in zip(self._sketches, self._times, strict=True)
        ])  # fmt: skip
        others = np.delete(total, self.rows)
        return float(np.median(total[self.rows]) - np.median(others))

    def _ratio(self, totals: Floats) -> float:
        """What these ranks have over what the others have; 1 if unknown."""
        others = np.delete(totals, self.rows)
        if not len(others) or np.median(others) <= 0:
            return 1.0
        return float(np.median(totals[self.rows]) / np.median(others))

    def _ratios(self) -> dict[str, tuple[float, float]]:
        """For each kernel the median on slow ranks over that on the others, and its time."""
        others = [one for row, one in enumerate(self._times) if row not in self._slow]
        found = {}
        for name in self._times[self.rows[0]]:
            slow = [self._times[row][name] for row in self.rows if name in self._times[row]]
            usual = [one[name] for one in others if name in one]
            if usual and np.median(usual) > 0:
                count, each = self._sketches[self.rows[0]].kernels[name][0], np.median(usual)
                found[name] = (float(np.median(slow) / each), count * float(each))
        return found


def other_processes(sketches: Sequence[Sketch], rows: Sequence[int], excess: float) -> str:
    """The share of a core that slow ranks got, if that is why they take longer; else empty.

    Args:
        sketches: of all ranks.
        rows: the slow ones, by position.
        excess: how much longer they take, as a share of what others take.
    """
    shares = np.array([1.0 if one.core_share is None else one.core_share for one in sketches])
    others = np.delete(shares, rows)
    slow = float(np.median(shares[list(rows)]))
    if not len(others) or slow >= QUIET:
        return ""
    longer = float(np.median(others)) / max(slow, 1e-9) - 1
    if longer < _BY_OTHERS * excess:
        return ""
    return f"its process got {slow:.0%} of a core, since others used its machine"


def machine_or(causes: Mapping[str, str]) -> str:
    """The one cause of a slow CPU and a slow device, or an empty text.

    Args:
        causes: by stage.
    """
    return _MACHINE if "host" in causes and _DEVICE in causes.values() else ""


def _times(sketch: Sketch, positions: np.ndarray, every: bool) -> dict[str, float]:
    """The duration of each kernel in some steps, ms; in all steps its median."""
    medians = {name: each for name, (_, each) in sketch.kernels.items()}
    if every:
        return medians
    known = by_step(sketch.kernels, sketch.kernel_steps)
    inside = {name: values[positions] for name, values in known.items()}
    found = {
        name: float(np.nanmedian(values))
        for name, values in inside.items()
        if not np.isnan(values).all()
    }
    return found or medians


def _are_alike(ratios: Floats) -> bool:
    """Whether most kernels are slower by about the same."""
    middle = float(np.median(ratios))
    least = 1 + (1 - _ALIKE) * (middle - 1)
    return middle > 1 + _LEAST_SHARE and float(np.percentile(ratios, 25)) > least
