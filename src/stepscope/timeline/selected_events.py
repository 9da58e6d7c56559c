"""The events of a module, a name or a source line."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids, Mask
from stepscope.timeline.event_index import Index, ranges
from stepscope.timeline.known_lines import frame_place, module_places


def of_modules(index: Index, modules: set[int]) -> Mask:
    """Events of some modules and of all inside them, backward and device work included.

    Returns:
        bool, shape (events,).
    """
    parent = index.trace["modules"]["parent"].tolist()
    inside = np.zeros(len(parent) + 1, np.bool_)
    for module, above in enumerate(parent):  # parents come first
        inside[module] = module in modules or (above >= 0 and inside[above])
    chosen: Mask = inside[index.events["module"]]
    return chosen


def of_name(index: Index, name: str) -> Mask:
    """Device work of a name, or operators where there is no device, bool, shape (events,)."""
    chosen: Mask = index.events.text("name").mask(name) & (index.events["kind"] >= 0)
    return chosen


def of_line(index: Index, file: str, line: int) -> Mask:
    """Events of the modules that a line calls or defines, and inside the frames that it is."""
    called = modules_of_line(index, file, line)
    chosen = of_modules(index, called) if called else np.zeros(len(index.order), np.bool_)
    frames = frames_of_line(index, file, line)
    _, place = ranges(*index.inside(frames))
    chosen[index.order[place]] = True
    chosen[index.device_work(frames)[1]] = True
    return chosen


def modules_of_line(index: Index, file: str, line: int) -> set[int]:
    """Ids of the modules that a line calls or defines."""
    return {
        module
        for module in range(len(index.trace["modules"]))
        for place in module_places(index, module)
        if (place.file, place.line) == (file, line)
    }


def frames_of_line(index: Index, file: str, line: int) -> Ids:
    """Ids of the recorded Python frames of a line."""

    def is_it(name: str) -> bool:
        place = frame_place(name)
        return place is not None and (place.file, place.line) == (file, line)

    return np.flatnonzero(index.is_frame & index.events.text("name").where(is_it))
