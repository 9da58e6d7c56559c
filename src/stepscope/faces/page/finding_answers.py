"""Findings of the analyzer's rules, and the events that show them."""

from collections.abc import Sequence
from typing import Literal

import msgspec
import numpy as np

from stepscope import analyze
from stepscope.analyze.analysis import heading_of
from stepscope.analyze.finding import Patch
from stepscope.analyze.findings_text import nothing_found
from stepscope.base.arrays import Mask
from stepscope.base.typed_data import convert
from stepscope.errors import ServeError
from stepscope.faces.page.requests import Query, filled
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.timeline.operation_labels import short_name

Severity = Literal["info", "warning", "critical"]
_MAX_PLACES = 12  # of a finding; chosen: bounds the answer, which has the number of all


class FindingPlace(msgspec.Struct):
    """A place that shows a finding; times are means a step."""

    name: str  # as recorded
    short: str  # shortened for display
    stage: str
    module: str
    file: str
    line: int | None
    function: str
    count: float  # events a step
    ms: float  # their time a step
    event: int | None  # id of its longest event, null if it has none


class Finding(msgspec.Struct):
    """One result of a rule."""

    id: int  # its number, for `select?finding=`
    rule: str  # name of the rule
    severity: Severity
    rank: int
    what: str  # one sentence on what is slow
    advice: str  # one sentence on what to do
    gain_ms: float  # time a step that it could save
    share: float  # of the step that it could save
    share_of: str  # what the share is of: "step", "run", "whole run", or "job's step"
    gain_by: str  # how the gain was estimated
    range_ms: tuple[float, float] | None  # least and most gain, if known
    changes: list[str]  # what-ifs that show the gain
    patch: Patch | None  # the lines to change, null if they are not known
    evidence: list[FindingPlace]  # the places that take longest, at most 12
    places: int  # number of all places


class Findings(msgspec.Struct):
    """All findings of one rank, the worst first."""

    rank: int
    step_ms: float  # mean length of a step
    steady_ms: float  # the same without one-off costs and delays, which gains are shares of
    leaves_out_a_step: bool  # whether the first step is left out as warm-up
    rules: int  # number of rules that were applied
    nothing: str  # what is said where none of them finds anything, empty if one does
    findings: list[Finding]


def findings(view: TraceView, query: Query) -> Findings:
    """Findings of one rank, the worst first; the first request runs the analyzer.

    Query:
        rank: by default the rank that the job is judged by, with gains simulated for all ranks.
    """
    context, results = _found(view, query)
    rules = len(view.rules)
    return Findings(
        rank=context.rank,
        step_ms=context.measures.step_ms,
        steady_ms=context.measures.steady_ms,
        leaves_out_a_step=context.search.excludes_warm_up,
        rules=rules,
        nothing="" if results else nothing_found(heading_of(context, rules, False)),
        findings=[_finding(view, number, finding) for number, finding in enumerate(results)],
    )


def events_of_finding(view: TraceView, query: Query, number: int) -> tuple[str, Mask]:
    """The rule of a finding, and its events; with `place` the events of that place alone; raises ServeError
    if there is no such finding or place."""
    place, (_, results) = query.number("place"), _found(view, query)
    if number >= len(results):
        raise ServeError(f"expected a finding below {len(results)}, found {number}", 404)
    evidence = results[number].evidence
    if place is not None and place >= len(evidence):
        raise ServeError(f"expected a place below {len(evidence)}, found {place}", 404)
    chosen = np.zeros(len(view.trace.events), np.bool_)
    for shown in evidence if place is None else evidence[place : place + 1]:
        chosen[list(shown.events)] = True
    return results[number].rule, chosen


def contexts_of_finding(view: TraceView, query: Query, number: int) -> list[int]:
    """The nodes of the calling-context tree that show a finding, ascending."""
    _, results = _found(view, query)
    return sorted({node for place in results[number].evidence for node in place.contexts})


def _found(view: TraceView, query: Query) -> tuple[analyze.RuleContext, Sequence[analyze.Finding]]:
    """What the analyzer finds on one rank, kept; the only rank is the same as all."""
    ranks = view.trace.metadata.ranks
    rank = query.number("rank") if ranks != (query.number("rank"),) else None

    def find() -> tuple[analyze.RuleContext, Sequence[analyze.Finding]]:
        context = analyze.RuleContext(view.trace, rank)
        return context, analyze.apply_rules(context, view.rules)

    return view.cached(("findings", rank), find)


def _finding(view: TraceView, number: int, finding: analyze.Finding) -> Finding:
    places = [_place(view, place) for place in finding.evidence[:_MAX_PLACES]]
    shown = {**finding.facts(), "id": number, "evidence": [], "places": len(finding.evidence)}
    return msgspec.structs.replace(convert(shown, Finding), evidence=places)


def _place(view: TraceView, place: analyze.Place) -> FindingPlace:
    duration = view.trace.events["duration_ns"]
    events = np.array(place.events, np.int64)
    longest = int(events[duration[events].argmax()]) if len(events) else None
    return filled(FindingPlace, place, short=short_name(place.name), event=longest)
