"""The timeline of a step in a single file: all levels, or the costliest where there is no room.

The answers come from the same functions as the server's; long tables are cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from stepscope.serve.answer_archive import Archive
from stepscope.serve.export_axis import step_tiles
from stepscope.serve.export_request import Report, request_key
from stepscope.serve.step_answers import by_cost, details_of_levels, step_of_levels
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.level import Opening
from stepscope.timeline.operation import StepId

# A part may take this share of the room that is left, the tracks what the parts before them leave.
_LEVELS, _DETAILS, _TRACKS = 0.7, 0.6, 0.7
Make = Callable[[TraceView, str, Sequence[Opening]], msgspec.Struct]


def add_step(archive: Archive, report: Report, step: str) -> list[str]:
    """Write the timeline of one step as far as there is room; returns what is left out.

    Levels come first, then what is known of their operations, the tracks, and the raw events.
    """
    view, title, left_out = report.view, _title(step), list[str]()
    openings = view.timeline.open_all(step)
    costliest = by_cost(openings)

    def add(request: str, make: Make, share: float) -> int:
        def answer(most: int) -> msgspec.Struct:
            return make(view, step, [openings[row] for row in sorted(costliest[:most])])

        reserve = round(archive.room * (1 - share))
        key = request_key(request, path=step)
        return archive.add_largest(key, answer, len(openings), reserve)

    levels = add("step", step_of_levels, _LEVELS)
    details = add("step_details", details_of_levels, _DETAILS)
    if levels < len(openings):
        left_out.append(f"what is inside {len(openings) - levels:,} small operations of {title}")
    if details < levels:
        left_out.append(f"details of small operations of {title}")
    reserve = round(archive.room * (1 - _TRACKS))
    if not all(archive.add(tile, reserve=reserve) for tile in step_tiles(report, step)):
        left_out.append(f"the shortest slices on the tracks of {title}")
    if not archive.add((request_key("trace", path=step), report.ask("trace", path=step))):
        left_out.append(f"the raw events of {title}")
    return left_out


def _title(step: str) -> str:
    number, rank = StepId.of(step)
    return f"step {number} of rank {rank}"
