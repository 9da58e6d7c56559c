"""What a report in a single file covers, and its tables and flame graphs, answered in advance.

The answers come from the same functions as the server's.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import UNSET
from msgspec.structs import replace

from stepscope.annotate.steps.requested_steps import missing_steps
from stepscope.annotate.steps.steps import require_steps
from stepscope.contexts import build_contexts
from stepscope.errors import ChangeError, TraceError
from stepscope.serve.context_answers import ContextFindings
from stepscope.serve.diff_answers import ranks_of
from stepscope.serve.finding_answers import Findings
from stepscope.serve.requests import Query
from stepscope.serve.routes import answer
from stepscope.serve.timeline_answers import LevelAnswer
from stepscope.serve.trace_view import TraceView
from stepscope.serve.whatif_answers import Refused
from stepscope.timeline.operation import StepId

_UNQUOTED = "!*'()"  # encodeURIComponent leaves these as they are, Python's quote does not
KeyedAnswer = tuple[str, msgspec.Struct]
"""A request as the page writes it, and its answer."""
_MAX_STEPS, _MAX_RANKS = 20, 16
_MAX_KERNELS, _MAX_LINES, _MAX_FILES = 300, 300, 100
_FEW_BOXES, _FLAMES = 2000, ("device", "cpu", "allocated")
_BOXES_OF_CONTEXTS = (40_000, 10_000, 2_500)


@dataclass(frozen=True)
class Report:
    """What a file covers.

    Attributes:
        name: of the trace.
        view: the trace.
        steps: paths of the steps whose timeline is included, the most important first; empty for a
            trace that holds collected contexts or memory alone.
        scope: `rank` and `step` of the tables, if they are not the default.
        sources: the files whose text is included.
        whatifs: predictions that are included: changes, one a line, as requests have them.
        compared: other traces that this one is compared with, by their ids in requests.
    """

    name: str
    view: TraceView
    steps: Sequence[str]
    scope: dict[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()
    whatifs: Sequence[str] = ()
    compared: Mapping[str, TraceView] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The rank that the file opens with."""
        return StepId.of(self.steps[0]).rank

    def ask(self, request: str, **query: str) -> Any:
        """The server's answer, a Struct of `routes`."""
        return answer(self.view, request, Query(query))


def report_of(
    view: TraceView, rank: int | None, step: int | None, sources: Sequence[str]
) -> Report:
    """What a file covers: one step, on one rank first and then on the others.

    For a trace that holds no step, but collected contexts or memory, it covers these.

    Args:
        view: the trace.
        rank: by default the one whose steps take longest.
        step: by default the rank's slowest.
        sources: the files whose text is included.

    Raises:
        TraceError: if there is no such rank or step.
    """
    name = Path(view.trace.metadata.source).name or "trace"
    if (view.has_only_contexts or view.has_only_memory) and rank is None and step is None:
        return Report(name, view, [], {}, sources)
    require_steps(view.trace)
    level = view.timeline.level("", every=True)
    steps = [StepId.of(operation.id) for operation in level.operations]
    lengths = view.timeline.step_lengths()
    rank = view.rank if rank is None else rank
    chosen = [id for id in steps if id.rank == rank and step in (None, id.step)]
    if not chosen:
        raise TraceError(missing_steps(view.trace, rank, step))
    first = max(chosen, key=lengths.__getitem__)
    others = [id for id in steps if id.step == first.step and id != first]
    scope = {"rank": str(rank), "step": "" if step is None else str(step)}
    return Report(name, view, [str(id) for id in (first, *others)], scope, sources)


def request_key(request: str, **query: str) -> str:
    """A request as the page writes it: parameters that are not empty, by name, quoted for a URL.

    Example:
        >>> request_key("level", path="s5.0/t3", every="")
        'level?path=s5.0%2Ft3'
    """
    parts = [f"{key}={quote(text, safe=_UNQUOTED)}" for key, text in sorted(query.items()) if text]
    return f"{request}?{'&'.join(parts)}" if parts else request


def tables(report: Report) -> Iterator[KeyedAnswer]:
    """Overview, tables of the steps, sources, and the selection for each of their rows."""
    yield "overview", replace(report.ask("overview", **report.scope), start=report.steps[0])
    requests = _of_steps(report)
    for request in requests:
        yield request, report.ask(request, **report.scope)
    found = _findings(report)
    yield "findings", found
    yield "axis", report.ask("axis")
    for scope in _scopes(report):
        for request in ("overview", *requests):
            yield request_key(request, **scope), report.ask(request, **scope)
    for every in ("", "1"):
        yield request_key("level", every=every), _first_level(report, every)
    yield from outlines(report)
    yield from whatifs(report)
    yield from sources(report)
    yield from _selections(report, len(found.findings))


def _of_steps(report: Report) -> tuple[str, ...]:
    """The tables of a step that a file holds."""
    communicates = report.ask("overview", **report.scope).has.communication
    return ("modules", "kernels", *(["collectives"] if communicates else []))


def _findings(report: Report) -> Findings:
    """All findings; patches quote source, so only of files whose text is included."""
    found: Findings = report.ask("findings")
    shown = [
        one if one.patch and one.patch.file in report.sources else replace(one, patch=None)
        for one in found.findings
    ]
    return replace(found, findings=shown)


def whatifs(report: Report) -> Iterator[KeyedAnswer]:
    """The predictions that were asked for, and the replay that they start from.

    Raises:
        ChangeError: if a change does not apply.
    """
    for changes in dict.fromkeys(("", *report.whatifs)) if report.whatifs else ():
        answer = report.ask("whatif", changes=changes)
        if isinstance(answer, Refused):
            raise ChangeError(answer.reason)
        yield request_key("whatif", changes=changes), answer


def _scopes(report: Report) -> Iterator[dict[str, str]]:
    """Each rank, and each step of the rank that the file opens with."""
    first = str(report.rank)
    overview = report.ask("overview", **report.scope)
    ranks = [str(rank) for rank in overview.ranks[:_MAX_RANKS]]
    yield from ({"rank": rank} for rank in dict.fromkeys([first, *ranks]))
    steps = [str(row.step) for row in overview.steps if str(row.rank) == first]
    yield from ({"rank": first, "step": step} for step in steps[:_MAX_STEPS])


def outlines(report: Report) -> Iterator[KeyedAnswer]:
    """A typical step of each rank, and those whose timeline is in the file, in a few rows."""
    ranks = compared_ranks(report)
    if report.compared and report.steps:
        ranks = ranks or [report.rank]
    for rank in map(str, ranks):
        yield request_key("outline", rank=rank), report.ask("outline", rank=rank)
    for path in report.steps if ranks else ():
        id = StepId.of(path)
        scope = {"rank": str(id.rank), "step": str(id.step)}
        yield request_key("outline", **scope), report.ask("outline", **scope)


def arrivals(report: Report) -> Iterator[KeyedAnswer]:
    """Collectives by rank in a step, and in each; of ranks together, so for one rank's steps."""
    overview = report.ask("overview", **report.scope)
    if not overview.has.communication or len(overview.ranks) < 2:
        return
    mine = [str(row.step) for row in overview.steps if row.rank == report.rank]
    for step in ("", *mine[:_MAX_STEPS]):
        yield (
            request_key("arrivals", step=step),
            report.ask("arrivals", rank=str(report.rank), step=step),
        )


def compared_ranks(report: Report) -> list[int]:
    """The ranks that a file may compare, the one that it opens with first; none of one rank."""
    with_steps = ranks_of(report.view.trace)
    others = [rank for rank in with_steps if rank != report.rank]
    return [report.rank, *others][:_MAX_RANKS] if others else []


def comparisons(report: Report) -> Iterator[KeyedAnswer]:
    """Ranks compared with each other, both ways; at first with the one that the file opens with."""
    first, *others = compared_ranks(report) or [report.rank]
    with_first = [pair for other in others for pair in ((first, other), (other, first))]
    for rank, against in (*with_first, *permutations(others, 2)):
        query = {"rank": str(rank), "against_rank": str(against)}
        yield request_key("diff", **query), report.ask("diff", **query)


def comparisons_with_others(report: Report) -> Iterator[KeyedAnswer]:
    """Each other trace, and each of its ranks, compared with the rank that the file opens with."""
    for id, other in report.compared.items():
        rank = str(report.rank)
        usual = report.ask("diff", against=id, rank=rank)
        yield request_key("diff", against=id, rank=rank), usual
        for against in usual.before.ranks[:_MAX_RANKS]:
            query = {"against": id, "rank": rank, "against_rank": str(against)}
            yield request_key("diff", **query), report.ask("diff", **query)
            yield (
                f"{id}/{request_key('outline', rank=str(against))}",
                answer(other, "outline", Query({"rank": str(against)})),
            )


def flames_against_others(report: Report) -> Iterator[KeyedAnswer]:
    """Flame graphs of other traces compared with that of the first rank."""
    scope = {"rank": str(report.rank)} if report.steps else {}
    for id in report.compared:
        yield from _flames(report, {**scope, "against": id}, _FEW_BOXES, _FLAMES)


def flames(report: Report) -> Iterator[KeyedAnswer]:
    """Flame graphs of the first rank for the usual measures, in both directions, few boxes each."""
    scope = {"rank": str(report.rank)}
    return _flames(report, scope, _FEW_BOXES, _FLAMES)


def tables_of_contexts(report: Report) -> Iterator[KeyedAnswer]:
    """Overview, findings and sources of a trace that holds collected contexts alone."""
    yield "overview", report.ask("overview")
    yield "findings", _findings(report)
    yield from sources(report)


def flames_of_contexts(report: Report) -> Iterator[tuple[Iterator[KeyedAnswer], list[str]]]:
    """Flame graphs of collected contexts for all measures, with fewer and fewer boxes.

    Yields:
        The answers, and what they leave out. Take the first that fits.
    """
    contexts = len(build_contexts(report.view.trace))
    for most in _BOXES_OF_CONTEXTS:
        left_out = f"all but the {most:,} largest contexts of each flame graph"
        yield _flames(report, {}, most), [left_out] if contexts > most else []


def _flames(
    report: Report, scope: dict[str, str], most: int, names: Collection[str] = ()
) -> Iterator[KeyedAnswer]:
    """Flame graphs in both directions, and the findings to mark in them.

    Args:
        report: what a file covers.
        scope: `rank`, or nothing for the whole trace, and `against`, another trace.
        most: boxes in each.
        names: of the measures; by default all.
    """
    known = report.ask("contexts", **scope).measures
    measures = [measure for measure in known if not names or measure.name in names]
    for by in ("", *(measure.name for measure in measures)):
        for up in ("", "1"):
            query = {**scope, "by": by, "up": up}
            graph = report.ask("contexts", **query, most=str(most))
            yield request_key("contexts", **query), replace(graph, measures=measures)
            if "against" in scope:  # findings are about one trace
                continue
            marks = report.ask("context_findings", **query)
            yield request_key("context_findings", **query), _shown(marks, graph.boxes.node)


def _shown(marks: ContextFindings, nodes: list[int]) -> ContextFindings:
    """The findings with the nodes that a flame graph shows."""
    shown = set(nodes)
    return ContextFindings(
        [
            replace(finding, nodes=[node for node in finding.nodes if node in shown])
            for finding in marks.findings
        ]
    )


def _first_level(report: Report, every: str) -> LevelAnswer:
    """The steps; those whose timeline is not in the file do not open."""
    answer: LevelAnswer = report.ask("level", every=every)
    steps = answer.level.operations
    steps.opens = [int(id in report.steps) for id in steps.id]
    return answer


def sources(report: Report) -> Iterator[KeyedAnswer]:
    """The list of source files, and for each its text and the costs of its lines."""
    known = report.ask("sources", **report.scope)
    yield "sources", known
    for file in [row.file for row in known.files[:_MAX_FILES]]:
        source = report.ask("source", file=file, **report.scope)
        if source.readable and file not in report.sources:
            source = replace(source, readable=False, text=None, reason=_NOT_INCLUDED)
        yield request_key("source", file=file), source


_NOT_INCLUDED = "this report does not include its text"


def _selections(report: Report, findings: int) -> Iterator[KeyedAnswer]:
    """What the panes show for each module, kernel, line and finding."""
    path = report.steps[0]
    modules = range(len(report.view.trace["modules"]))
    rows = report.ask("kernels", **report.scope).rows[:_MAX_KERNELS]
    costs, _ = report.view.line_costs(report.view.rank_of(Query(report.scope)), None)
    costs = sorted(costs, key=lambda cost: -max(cost.cpu_ns, cost.device_ns))[:_MAX_LINES]
    lines = dict.fromkeys((cost.place.file, str(cost.place.line)) for cost in costs)
    for chosen in (
        *({"module": str(module)} for module in modules),
        *({"kernel": row.name} for row in rows),
        *({"file": file, "line": line} for file, line in lines),
        *({"finding": str(number)} for number in range(findings)),
    ):
        selected = report.ask("select", **chosen, path=path)
        # The page counts hits itself, since the file cannot know what is on screen.
        yield request_key("select", **chosen), replace(selected, levels=UNSET)
