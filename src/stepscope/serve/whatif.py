"""Answers about what-ifs: which changes there are, and what some of them would make of the step."""

from __future__ import annotations

from typing import Any

from stepscope.errors import ChangeError, GraphError
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.whatif.pane import Pane

_FEW_RECTANGLES, _MOST_RECTANGLES = 2000, 20_000


def changes(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """Every change with its parameters, and whether it applies to `rank` and `step`.

    Without `rank` to all ranks together, without `step` to the longest row of consecutive ones.
    """
    pane = _pane(opened, query)
    return {"changes": opened.keep(("changes", *_scope(query)), lambda: pane.changes)}


def whatif(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """What `changes`, one a line and in this order, would make of the step, with two timelines.

    Where they do not apply there is only the `reason`.

    `rank` and `step` as for `changes`, `most` is how many rectangles each timeline has at most.
    """
    asked = [text for text in query.text("changes").split("\n") if text]
    most = min(query.number("most") or _FEW_RECTANGLES, _MOST_RECTANGLES)
    pane = _pane(opened, query)
    try:
        return {**pane.answer(asked, most), "reason": ""}
    except (ChangeError, GraphError) as refusal:
        return {"answer": None, "timeline": None, "reason": str(refusal)}


def _pane(opened: OpenTrace, query: Query) -> Pane:
    """The graph of a rank and a step, built once."""
    scope = _scope(query)
    return opened.keep(("what-ifs", *scope), lambda: Pane(opened.trace, *scope))


def _scope(query: Query) -> tuple[int | None, int | None]:
    return query.number("rank"), query.number("step")
