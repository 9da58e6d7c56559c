"""What the analyzer's rules find, and the events that show it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stepscope.analyze import RULES, Finding, Place, Subject, apply_rules
from stepscope.errors import ServeError
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.timeline.names import short_name

Mask = NDArray[np.bool_]
_MOST_PLACES = 12


def findings(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """Findings of one rank, the worst first; without `rank` that of the rank that works longest."""
    rank = query.number("rank")
    subject, found = opened.keep(("findings", rank), lambda: _find(opened, rank))
    return {
        "rank": subject.rank,
        "step_ms": subject.step_ms,
        "leaves_out_a_step": subject.leaves_out_a_step,
        "rules": len(RULES),
        "findings": [_told(opened, number, one) for number, one in enumerate(found)],
    }


def of_finding(opened: OpenTrace, query: Query, number: int) -> tuple[str, Mask]:
    """What a finding is, and the events that show it: of `place` alone where that is given.

    Raises:
        ServeError: if there is no such finding or place.
    """
    rank, place = query.number("rank"), query.number("place")
    _, found = opened.keep(("findings", rank), lambda: _find(opened, rank))
    if number >= len(found):
        raise ServeError(f"expected a finding below {len(found)}, found {number}", 404)
    evidence = found[number].evidence
    if place is not None and place >= len(evidence):
        raise ServeError(f"expected a place below {len(evidence)}, found {place}", 404)
    chosen = np.zeros(len(opened.trace.events), np.bool_)
    for one in evidence if place is None else evidence[place : place + 1]:
        chosen[list(one.events)] = True
    return found[number].rule, chosen


def contexts_of_finding(opened: OpenTrace, query: Query, number: int) -> list[int]:
    """The nodes of the calling-context tree that show a finding, ascending."""
    rank = query.number("rank")
    _, found = opened.keep(("findings", rank), lambda: _find(opened, rank))
    return sorted({node for place in found[number].evidence for node in place.contexts})


def _find(opened: OpenTrace, rank: int | None) -> tuple[Subject, Sequence[Finding]]:
    subject = Subject(opened.trace, rank)
    return subject, apply_rules(subject, RULES)


def _told(opened: OpenTrace, number: int, finding: Finding) -> dict[str, Any]:
    told = finding.to_json()
    places = [_place(opened, one) for one in finding.evidence[:_MOST_PLACES]]
    return {"id": number, **told, "evidence": places, "places": len(finding.evidence)}


def _place(opened: OpenTrace, place: Place) -> dict[str, Any]:
    duration = opened.trace.events["duration_ns"]
    return {
        "name": place.name,
        "short": short_name(place.name),
        "stage": place.stage,
        "module": place.module,
        "file": place.file,
        "line": place.line,
        "function": place.function,
        "count": place.count,
        "ms": place.ms,
        "event": max(place.events, key=lambda event: int(duration[event]), default=None),
    }
