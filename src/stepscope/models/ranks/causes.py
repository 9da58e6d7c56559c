"""Why ranks work longer than the others, from their kernels and from what they receive."""

from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.base.arrays import Floats
from stepscope.models.ranks.kernel_times import by_step
from stepscope.models.ranks.sketch import JobTable, Sketch
from stepscope.models.ranks.slow_groups import LEAST_SHARE, SlowGroup
from stepscope.trace.recorded_steps import QUIET

# Thresholds of causes, all shares of the excess; [jobs]: see `slow_groups`.
_ALIKE = 0.35  # kernels that differ by less are slower alike; [jobs]
_BY_OTHERS = 0.5  # if waiting for a core explains as much, it is the largest cause
_EXPLAINED = 0.3  # of less, kernels are no explanation; [jobs]
_LEAST_KERNELS = 3  # of fewer, nothing shows that all are slower
OF_STAGE = {"data_loading": "its batches arrive late", "host": "its CPU launches work later than the others'"}
_DEVICE, _CPU = "slower device (all kernels alike)", "slower CPU (all operators alike)"
_MACHINE = "slower machine (its CPU launches later, and all kernels take longer alike)"


def cause_of_stages(
    table: JobTable, group: SlowGroup, stages: Mapping[str, float], ratios: Mapping[str, float]
) -> dict[str, str]:
    """The cause of each stage; those that compute have one."""
    computing = [name for name in stages if name not in OF_STAGE]
    causes = {name: OF_STAGE[name] for name in stages if name in OF_STAGE}
    if computing:
        ratio = ratios[max(computing, key=stages.__getitem__)]
        device = table.sketches[group.rows[0]].device
        cause = "" if device else other_processes(table.sketches, group.rows, ratio)
        excess_ms = sum(stages[name] for name in computing)
        cause = cause or _Kernels(table, group).cause(excess_ms, ratio, table.received)
        causes |= dict.fromkeys(computing, cause)
    return causes


def machine_or(causes: Mapping[str, str]) -> str:
    """The one cause of a slow CPU and a slow device, or an empty text."""
    return _MACHINE if "host" in causes and _DEVICE in causes.values() else ""


def other_processes(sketches: Sequence[Sketch], rows: Sequence[int], excess: float) -> str:
    """The share of a core that slow ranks got, if that is why they take longer; else empty.

    Args:
        excess: how much longer they take, as a share of what others take.
    """
    shares = np.array([1.0 if one.core_share is None else one.core_share for one in sketches])
    slow, others = float(np.median(shares[list(rows)])), np.delete(shares, rows)
    if not len(others) or slow >= QUIET:
        return ""
    if float(np.median(others)) / max(slow, 1e-9) - 1 < _BY_OTHERS * excess:
        return ""
    return f"its process got {slow:.0%} of a core, since others used its machine"


class _Kernels:
    def __init__(self, table: JobTable, group: SlowGroup) -> None:
        self._rows, self._sketches, self._grows = group.rows, table.sketches, group.steps.grows
        when = group.steps.when
        self._times = [
            _times(one, np.array(place)[when], bool(when.all()))
            for one, place in zip(table.sketches, table.places, strict=True)
        ]

    def cause(self, excess_ms: float, excess: float, received: Floats) -> str:
        """Why the slow ranks compute longer; `received`: bytes of all-to-all per step, shape (ranks,)."""
        usual = float(np.median(np.delete(received, self._rows))) if len(received) > 1 else 0.0
        tokens = float(np.median(received[self._rows])) / usual if usual > 0 else 1.0
        if tokens > 1 + _ALIKE * min(excess, 1):
            return f"all-to-all brings it {tokens:.3g} times the bytes of the others: imbalanced expert"
        ratios = self._ratios()
        return self._by_kernels(excess_ms, ratios) if ratios else "its own work takes longer"

    def _by_kernels(self, excess_ms: float, ratios: Mapping[str, tuple[float, float]]) -> str:
        first = self._sketches[self._rows[0]]
        work = "kernel" if first.has_device else "operator"
        longer = self._longer_ms()
        if longer < _EXPLAINED * excess_ms:
            return f"in Python or waiting (no {work} takes longer)"
        values = np.array([ratio for ratio, _ in ratios.values()])
        if len(values) >= _LEAST_KERNELS and _are_alike(values):
            throttles = ", as one that throttles" if self._grows else ""
            return f"{_DEVICE}{throttles}" if work == "kernel" else _CPU
        extra = {name: (ratio - 1) * each for name, (ratio, each) in ratios.items()}
        name = max(extra, key=extra.__getitem__)
        if extra[name] > _EXPLAINED * longer:
            return f"mostly {name}"
        return f"more work (as many ms per {work}, more {work}s)"

    def _longer_ms(self) -> float:
        pairs = zip(self._sketches, self._times, strict=True)
        total = np.array(
            [sum(one.kernels[name][0] * each for name, each in times.items()) for one, times in pairs]
        )
        others = np.delete(total, self._rows)
        return float(np.median(total[self._rows]) - np.median(others))

    def _ratios(self) -> dict[str, tuple[float, float]]:
        """For each kernel the median on slow ranks over that on the others, and its time."""
        rows = set(self._rows)
        others = [times for row, times in enumerate(self._times) if row not in rows]
        ratios = {}
        for name in self._times[self._rows[0]]:
            slow = [self._times[row][name] for row in self._rows if name in self._times[row]]
            usual = [times[name] for times in others if name in times]
            if usual and np.median(usual) > 0:
                count, each = self._sketches[self._rows[0]].kernels[name][0], np.median(usual)
                ratios[name] = (float(np.median(slow) / each), count * float(each))
        return ratios


def _times(sketch: Sketch, positions: np.ndarray, every: bool) -> dict[str, float]:
    """The duration of each kernel in some steps, ms; in all steps its median."""
    medians = {name: each for name, (_, each) in sketch.kernels.items()}
    if every:
        return medians
    durations = by_step(sketch.kernels, sketch.kernel_steps).items()
    inside = ((name, values[positions]) for name, values in durations)
    recorded = {name: float(np.nanmedian(each)) for name, each in inside if not np.isnan(each).all()}
    return recorded or medians


def _are_alike(ratios: Floats) -> bool:
    middle = float(np.median(ratios))
    least = 1 + (1 - _ALIKE) * (middle - 1)
    return middle > 1 + LEAST_SHARE and float(np.percentile(ratios, 25)) > least
