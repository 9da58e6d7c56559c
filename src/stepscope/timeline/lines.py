"""What source lines cost: those that call a module or define its class, and Python frames.

A line's cost holds all that it calls, so nested lines overlap, as inclusive times do. The backward
of what a line calls counts for the line, wherever it runs: events carry the module, or the forward
event, whose gradient they compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from stepscope.timeline.index import Ids, Index, Mask, ranges
from stepscope.timeline.places import Place, frame_place, module_places
from stepscope.trace.intervals import grouped_union
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import COMPUTING, STAGES

PHASES = ("forward", "backward", "other")
_FORWARD = (STAGES.index("forward"), STAGES.index("loss"))
_BACKWARD = STAGES.index("backward")


@dataclass(frozen=True)
class LineCost:
    """What one line costs in some steps, all of them together.

    Attributes:
        place: the line.
        modules: ids of the modules that it calls or defines.
        calls: of these modules, or of the frame, in the whole trace.
        cpu_ns: CPU time by `PHASES`; forward that is repeated in backward is backward.
        device_ns: device busy time by `PHASES`, as unions.
    """

    place: Place
    modules: list[int]
    calls: int
    cpu_ns: tuple[int, ...]
    device_ns: tuple[int, ...]


def line_costs(index: Index, chosen: Mask) -> list[LineCost]:
    """What each line that the trace knows costs.

    Args:
        index: of the trace.
        chosen: events of the steps to be told of, bool, shape (events,).
    """
    return [*_of_modules(index, chosen), *_of_frames(index, chosen)]


class _Bill:
    """Times by line and phase, added up from pairs of a line and an event."""

    def __init__(self, index: Index, lines: int) -> None:
        self._index, self._lines = index, lines
        self._cpu = np.zeros(lines * len(PHASES))
        self._pairs: list[tuple[Ids, Ids]] = []
        self._phase = _phases(index)

    def cpu(self, line: Ids, event: Ids) -> None:
        """Charge lines with the time that CPU events keep for themselves."""
        key = line * len(PHASES) + self._phase[event]
        self._cpu += np.bincount(key, self._index.events["self_ns"][event], len(self._cpu))

    def device(self, line: Ids, event: Ids) -> None:
        """Charge lines with device work; what is charged twice counts once."""
        self._pairs.append((line * len(PHASES) + self._phase[event], event))

    def costs(self) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """CPU and device time of each line, by phase."""
        key, event = (
            np.concatenate([np.zeros(0, np.int64), *part])
            for part in (zip(*self._pairs, strict=True) if self._pairs else ((), ()))
        )
        start, end = self._index.start[event], self._index.end[event]
        device = grouped_union(key, start, end, len(self._cpu))
        for cpu, busy in zip(
            self._cpu.astype(np.int64).reshape(-1, len(PHASES)).tolist(),
            device.reshape(-1, len(PHASES)).tolist(),
            strict=True,
        ):
            yield tuple(cpu), tuple(busy)


def _phases(index: Index) -> Ids:
    """Number of each event's phase, shape (events,)."""
    stage, again = index.events["stage"], index.events["recompute"] == 1
    phase = np.where(np.isin(stage, _FORWARD), 0, 2)
    return np.where((stage == _BACKWARD) | again, 1, phase)


def _computing(index: Index, chosen: Mask) -> Ids:
    """Chosen device work; collectives belong to no line, as to no module."""
    computes = index.events.text("category").mask(*COMPUTING)
    return np.flatnonzero(chosen & computes & index.on_device)


# -- lines that call modules, or define their classes


def _of_modules(index: Index, chosen: Mask) -> Iterator[LineCost]:
    modules = index.trace["modules"]
    called: dict[Place, list[int]] = {}
    for module in range(len(modules)):
        for place in module_places(index, module):
            called.setdefault(Place(place.file, place.line, place.what, ""), []).append(module)
    bill = _Bill(index, len(called))
    ends, lines = _lines_around(modules["parent"], called)
    host = np.flatnonzero(chosen & ~index.on_device)
    for charge, event in ((bill.cpu, host), (bill.device, _computing(index, chosen))):
        event = event[index.events["module"][event] >= 0]
        within = index.events["module"][event].astype(np.int64)
        pair, position = ranges(ends[within], ends[within + 1])
        charge(lines[position], event[pair])
    for (place, inside), (cpu, device) in zip(called.items(), bill.costs(), strict=True):
        named = Place(place.file, place.line, place.what, _names(index, place, inside))
        yield LineCost(named, inside, int(modules["calls"][inside].sum()), cpu, device)


def _names(index: Index, place: Place, modules: list[int]) -> str:
    text = index.trace["modules"].text("class" if place.what == "class" else "path")
    return ", ".join(dict.fromkeys(text[module] or "model" for module in modules))


def _lines_around(parent: NDArray[np.integer], called: dict[Place, list[int]]) -> tuple[Ids, Ids]:
    """For each module the lines of itself and of those around it, each once: ends, and lines."""
    own: list[set[int]] = [set() for _ in range(len(parent))]
    for line, modules in enumerate(called.values()):
        for module in modules:
            own[module].add(line)
    for module, above in enumerate(parent.tolist()):
        if above >= 0:
            own[module] |= own[above]  # parents come first
    ends = np.cumsum([0, *map(len, own)])
    return ends, np.array([line for lines in own for line in sorted(lines)], np.int64)


# -- recorded Python frames


def _of_frames(index: Index, chosen: Mask) -> Iterator[LineCost]:
    names = index.events.text("name")
    known = [frame_place(name) for name in names.values]
    places = list(dict.fromkeys(place for place in known if place is not None))
    if not places:
        return
    number = {place: line for line, place in enumerate(places)}
    codes = np.array([number[place] if place else -1 for place in known] + [-1], np.int64)
    line = np.where(index.is_frame, codes[names.codes], -1)
    calls = np.bincount(line[line >= 0], minlength=len(places))
    bill = _Bill(index, len(places))
    _charge_frames(index, chosen, _without_recursion(index, line), bill)
    for place, count, (cpu, device) in zip(places, calls.tolist(), bill.costs(), strict=True):
        yield LineCost(place, [], count, cpu, device)


def _without_recursion(index: Index, line: Ids) -> Ids:
    """The line of each frame, -1 for a frame inside another of the same line."""
    rows = np.flatnonzero(line >= 0)
    rows = rows[np.lexsort((index.place[rows], line[rows]))]
    beyond = line[rows] * (len(line) + 1)
    reach = np.maximum.accumulate(index.last[rows] + beyond)
    inside = np.append(False, (index.place[rows] + beyond)[1:] <= reach[:-1])[: len(rows)]
    result = line.copy()
    result[rows[inside]] = -1
    return result


def _charge_frames(index: Index, chosen: Mask, line: Ids, bill: _Bill) -> None:
    host, work = np.flatnonzero(chosen & ~index.on_device), _computing(index, chosen)
    forward = inherit(index.events["parent"], index.events["forward_event"]).astype(np.int64)
    for charge, event, at in ((bill.cpu, host, host), (bill.device, work, index.launch[work])):
        for frame, item in _around(index, line, at):
            charge(line[frame], event[item])
        told = np.flatnonzero(forward[at] >= 0)
        for frame, item in _around(index, line, forward[at[told]]):
            beside = ~_holds(index, frame, at[told[item]])  # else it is charged already
            charge(line[frame[beside]], event[told[item[beside]]])


def _around(index: Index, line: Ids, start: Ids) -> Iterator[tuple[Ids, Ids]]:
    """The frames around each of `start`, itself included, level by level: frame and its item."""
    at, item = start, np.arange(len(start))
    while len(at):
        known = line[at] >= 0
        if known.any():
            yield at[known], item[known]
        at = index.parent[at]
        at, item = at[at >= 0], item[at >= 0]


def _holds(index: Index, frame: Ids, event: Ids) -> Mask:
    place = index.place[event]
    holds: Mask = (index.place[frame] <= place) & (place <= index.last[frame])
    return holds
