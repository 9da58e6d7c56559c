"""One sentence on what changed between two runs: the step, the device's work, what bounds it."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.diff.compare import SIGNIFICANT, Row, RunComparison, Side

_LEAST = 0.01  # of the step: smaller changes explain nothing
_MOSTLY = 0.5
_ROUGH = 0.1
_CHANGED = (*SIGNIFICANT, "one_step")  # of one step the sentence says so first
_KINDS = {
    "gemm": "matrix products", "convolution": "convolutions", "memcpy": "copies",
    "memset": "fills", "elementwise": "elementwise kernels", "reduction": "reductions",
    "embedding": "embeddings", "other": "other kernels",
}  # fmt: skip
_CAUSES = {
    "idle: data": "data loading",
    "idle: host": "the CPU",
    "idle: launch": "the CPU",
    "idle: synchronization": "synchronization",
    "busy: exposed communication": "communication",
}
_WAITS = {
    "idle: data": "waiting for data",
    "idle: host": "idle time while the CPU prepares work",
    "idle: launch": "idle time between launch and start",
    "idle: unknown": "idle time",
    "idle: synchronization": "idle time at synchronizations",
    "busy: exposed communication": "exposed communication",
}


def explain(found: RunComparison) -> str:
    """What changed, in one sentence.

    Example:
        >>> explain(compare(before, after))  # doctest: +SKIP
        'B takes 12% less time: device work fell by 31% (mostly convolution); the step stays …'
    """
    reasons = "; ".join(_reasons(found))
    between = "; " if found.step.verdict in ("unclear", "one_step", "same") else ": "
    return f"{_step(found)}{between if reasons else ''}{reasons}."


def _step(found: RunComparison) -> str:
    row = found.step
    change = (row.ratio or 1.0) - 1
    times = f"{_percent(change)} {'more' if change > 0 else 'less'} time"
    if row.verdict == "one_step":
        alone = "A" if len(found.before.steps) == 1 else "B"
        return f"B takes {times}, but {alone} has only one step, so this may be noise"
    if row.verdict == "unclear":
        return f"B takes {times}, {_doubt(found)}"
    return "B takes as long as A" if row.verdict == "same" else f"B takes {times}"


def _doubt(found: RunComparison) -> str:
    """Few steps may leave a change uncertain that most of them show: that is no noise."""
    if found.before.load or found.after.load:
        return "which other processes on the machine may have caused"
    beyond, steps = found.beyond, len(found.after.steps)
    if beyond <= steps / 2:
        return "which is within noise"
    which = "slower" if found.step.change_ms > 0 else "faster"
    return f"which is not certain, although {beyond} of its {steps} steps are {which} than all of A"


def _reasons(found: RunComparison) -> Iterator[str]:
    if not found.before.on_device:
        yield from _longest_change(found, found.parts["stages"])
        return
    waits = [row for row in found.parts["time use"] if row.key[0] in _WAITS]
    reasons = [*_device_work(found), *_longest_change(found, waits)]
    work = found.device_work
    later = work is None or (waits and abs(waits[0].change_ms) > abs(work.change_ms))
    yield from reversed(reasons) if later else reasons
    yield from _bounds(found)


def _device_work(found: RunComparison) -> Iterator[str]:
    row = found.device_work
    if row is None or row.ratio is None:
        return
    if row.verdict not in _CHANGED or abs(row.ratio - 1) < _LEAST:
        yield "device work is the same"
        return
    kinds = (one for one in found.parts["kinds"] if one.change_ms * row.change_ms > 0)
    kind = next((one.key[0] for one in kinds if one.verdict in _CHANGED), "")
    moved = "rose" if row.change_ms > 0 else "fell"
    mostly = f" (mostly {_KINDS.get(kind, kind)})" if kind else ""
    yield f"device work {moved} by {_percent(row.ratio - 1)}{mostly}"


def _longest_change(found: RunComparison, rows: list[Row]) -> Iterator[str]:
    """The part that changed most, beyond noise."""
    least = _LEAST * (found.step.before.median_ms if found.step.before else 0.0)
    for row in rows:
        if row.verdict in _CHANGED and abs(row.change_ms) >= least:
            name = _WAITS.get(row.key[0], " ".join(row.key).replace("_", " "))
            yield f"{name} {'rose' if row.change_ms > 0 else 'fell'} by {abs(row.change_ms):.3g} ms"
            return


def _percent(change: float) -> str:
    return f"{abs(change):.0%}" if abs(change) >= _ROUGH else f"{abs(change):.1%}"


def _bounds(found: RunComparison) -> Iterator[str]:
    before, after = (_bound(found, side) for side in ("before", "after"))
    if before and before == after:
        yield f"the step stays bound by {after}"
    elif before and after:
        yield f"the step is now bound by {after}, before by {before}"


def _bound(found: RunComparison, side: str) -> str:
    """What bounds the step of one side: the device if it computes for half of it."""
    sides: dict[str, Side | None] = {row.key[0]: getattr(row, side) for row in
                                     found.parts["time use"]}  # fmt: skip
    time = {name: one.median_ms for name, one in sides.items() if one}
    whole: Side | None = getattr(found.step, side)
    exchanged = time.get("busy: exposed communication", 0.0)
    if whole and time.get("device busy", 0.0) - exchanged >= _MOSTLY * whole.median_ms:
        return "the device"
    spent: dict[str, float] = {}
    for name, cause in _CAUSES.items():
        spent[cause] = spent.get(cause, 0.0) + time.get(name, 0.0)
    return max(spent, key=lambda cause: spent[cause]) if any(spent.values()) else ""
