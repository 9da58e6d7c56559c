"""What a report in a single file covers, and its tables, flame graphs and tiles.

The answers come from the same functions as the server's.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import Any
from urllib.parse import quote

from msgspec.structs import replace

from stepscope.errors import ChangeError, TraceError
from stepscope.faces.page.context_answers import ContextFindings
from stepscope.faces.page.diff_answers import ranks_of, recorded_step
from stepscope.faces.page.finding_answers import Findings
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView
from stepscope.faces.page.whatif_answers import Refused
from stepscope.facts.annotate.steps.step_table import missing_steps, require_steps, steady_steps
from stepscope.facts.timeline.operation import StepId

_UNQUOTED = "!*'()"  # encodeURIComponent leaves these as they are, Python's quote does not
_MAX_STEPS, _MAX_RANKS, _MOMENTS = 20, 16, 60
_MAX_KERNELS, _MAX_LINES, _MAX_FILES, _MAX_LIVING = 300, 300, 100, 40
_FEW_BOXES, _FLAMES = 2000, ("device", "cpu", "allocated")
_NOT_INCLUDED = "this report does not include its text"
KeyedAnswer = tuple[str, Any]
"""A request as the page writes it, and its answer."""


@dataclass(frozen=True)
class Report:
    """What a file covers."""

    name: str  # of the trace
    view: TraceView  # the trace
    # paths of the steps whose timeline is included, the most important first; empty for a trace that
    # holds collected contexts or memory alone
    steps: Sequence[str]
    # `rank` and `step` of the tables, if they are not the default
    scope: dict[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()  # the files whose text is included
    whatifs: Sequence[str] = ()  # predictions that are included: changes, one a line, as requests have them
    # other traces that this one is compared with, by their ids in requests
    compared: Mapping[str, TraceView] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        return StepId.of(self.steps[0]).rank

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of what the file covers, ns since the trace's start."""
        if not self.steps:
            return 0, self.ask("memory").end_ns
        level = self.view.timeline.level(self.steps[0])
        return level.start_ns, level.reach_ns

    def ask(self, request: str, **query: str) -> Any:
        return answer(self.view, request, Query(query))

    def keyed(self, request: str, **query: str) -> KeyedAnswer:
        return request_key(request, **query), self.ask(request, **query)


def report_of(
    view: TraceView,
    rank: int | None,
    step: int | None,
    sources: Sequence[str],
    compared: Mapping[str, TraceView] | None = None,
) -> Report:
    """What a file covers: one step, on one rank first and then on the others.

    For a trace that holds no step, but collected contexts or memory, it covers these.

    Args:
        rank: by default the one that the job is judged by.
        step: by default the rank's slowest that does not warm up; where other traces are `compared`, the
            one nearest to the median, as medians are compared.
        sources: the files whose text is included.

    Raises:
        TraceError: if there is no such rank or step.
    """
    name, others = Path(view.trace.metadata.source).name or "trace", compared or {}
    stepless = (not len(view.trace["steps"]) and len(view.trace["contexts"]) > 0) or view.has_only_memory
    if stepless and rank is None and step is None:
        return Report(name, view, [], {}, sources, compared=others)
    require_steps(view.trace)
    level = view.timeline.level("", every=True)
    steps = [StepId.of(operation.id) for operation in level.operations]
    lengths = view.timeline.step_lengths()
    steady = view.timeline.step_lengths(steady_steps(view.trace["steps"]))
    rank = view.rank if rank is None else rank
    chosen = [id for id in steps if id.rank == rank and step in (None, id.step)]
    if not chosen:
        raise TraceError(missing_steps(view.trace, rank, step))
    first = max(chosen, key=lambda one: (one in steady, lengths[one]))
    if others and step is None:
        first = StepId(recorded_step(view.trace, rank, None).number, rank)
    same = [id for id in steps if id.step == first.step and id != first]
    scope = {"rank": str(rank), "step": "" if step is None else str(step)}
    return Report(name, view, [str(id) for id in (first, *same)], scope, sources, compared=others)


def request_key(request: str, **query: str) -> str:
    """A request as the page writes it: parameters that are not empty, by name, quoted for a URL."""
    parts = [f"{key}={quote(text, safe=_UNQUOTED)}" for key, text in sorted(query.items()) if text]
    return f"{request}?{'&'.join(parts)}" if parts else request


# -- tables


def tables(report: Report) -> Iterator[KeyedAnswer]:
    """Overview, findings, sources; with steps their tables, and the selection for each row."""
    overview, found = report.ask("overview", **report.scope), _findings(report)
    yield "overview", replace(overview, start=report.steps[0]) if report.steps else overview
    yield "findings", found
    yield from _sources(report)
    if not report.steps:
        return
    yield report.keyed("axis")
    requests = ("modules", "kernels", *(["collectives"] if overview.has.communication else []))
    yield from ((request, report.ask(request, **report.scope)) for request in requests)
    for scope in _scopes(report, overview):
        yield from (report.keyed(request, **scope) for request in ("overview", *requests))
    yield from (_first_level(report, every) for every in ("", "1"))
    yield from _whatifs(report)
    yield from _selections(report, len(found.findings))


def _findings(report: Report) -> Findings:
    """All findings; patches quote source, so only of files whose text is included."""
    found: Findings = report.ask("findings")
    shown = [
        finding if finding.patch and finding.patch.file in report.sources else replace(finding, patch=None)
        for finding in found.findings
    ]
    return replace(found, findings=shown)


def _scopes(report: Report, overview: Any) -> Iterator[dict[str, str]]:
    first = str(report.rank)
    yield from ({"rank": rank} for rank in dict.fromkeys([first, *map(str, overview.ranks[:_MAX_RANKS])]))
    yield from ({"rank": first, "step": step} for step in _told_steps(report, overview))


def _told_steps(report: Report, overview: Any) -> list[str]:
    """The steps of the first rank that tables are about alone: the one that is opened, then the first."""
    own = [str(row.step) for row in overview.steps if row.rank == report.rank]
    opened = str(StepId.of(report.steps[0]).step)
    return [*dict.fromkeys([opened, *own])][:_MAX_STEPS]


def _first_level(report: Report, every: str) -> KeyedAnswer:
    """The steps; those whose timeline is not in the file do not open."""
    key, found = request_key("level", every=every), report.ask("level", every=every)
    steps = found.level.operations
    steps.opens = [int(id in report.steps) for id in steps.id]
    return key, found


def _whatifs(report: Report) -> Iterator[KeyedAnswer]:
    """The predictions that were asked for, and the replay that they start from."""
    for changes in dict.fromkeys(("", *report.whatifs)) if report.whatifs else ():
        key, found = report.keyed("whatif", changes=changes)
        if isinstance(found, Refused):
            raise ChangeError(found.reason)
        yield key, found


def _sources(report: Report) -> Iterator[KeyedAnswer]:
    known = report.ask("sources", **report.scope)
    yield "sources", known
    for file in [row.file for row in known.files[:_MAX_FILES]]:
        source = report.ask("source", file=file, **report.scope)
        if source.text is not None and file not in report.sources:
            source = replace(source, text=None, reason=_NOT_INCLUDED)
        yield request_key("source", file=file), source


def _selections(report: Report, findings: int) -> Iterator[KeyedAnswer]:
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
        # The page counts hits itself, since the file cannot know what is on screen.
        selected = report.ask("select", **chosen, path=report.steps[0], bare="1")
        yield request_key("select", **chosen), selected


# -- ranks and traces compared


def arrivals(report: Report) -> Iterator[KeyedAnswer]:
    """Collectives by rank in a step, and in each; of ranks together, so for one rank's steps."""
    overview = report.ask("overview", **report.scope)
    if not overview.has.communication or len(overview.ranks) < 2:
        return
    for step in ("", *_told_steps(report, overview)):
        found = report.ask("arrivals", rank=str(report.rank), step=step)
        yield request_key("arrivals", step=step), found


def _compared_ranks(report: Report) -> list[int]:
    """The ranks that a file may compare, the one that it opens with first; none of one rank."""
    others = [rank for rank in ranks_of(report.view.trace) if rank != report.rank]
    return [report.rank, *others][:_MAX_RANKS] if others else []


def comparisons(report: Report) -> Iterator[KeyedAnswer]:
    """Ranks compared with each other, both ways; at first with the one that the file opens with."""
    first, *others = _compared_ranks(report) or [report.rank]
    with_first = [pair for other in others for pair in ((first, other), (other, first))]
    for rank, against in (*with_first, *permutations(others, 2)):
        yield report.keyed("diff", rank=str(rank), against_rank=str(against))


def comparisons_with_others(report: Report) -> Iterator[KeyedAnswer]:
    for id in report.compared:
        key, usual = report.keyed("diff", against=id, rank=str(report.rank))
        yield key, usual
        for against in map(str, usual.before.ranks[:_MAX_RANKS]):
            yield report.keyed("diff", against=id, rank=str(report.rank), against_rank=against)


def pairs(report: Report) -> Iterator[KeyedAnswer]:
    """The step that the file opens with above predictions, other traces, and other ranks."""
    step = StepId.of(report.steps[0])
    shown = {"rank": str(step.rank), "step": str(step.step)}
    for other in (
        *({"changes": changes} for changes in dict.fromkeys(report.whatifs) if changes),
        *({"against": id} for id in report.compared),
        *({"against_rank": str(rank)} for rank in _compared_ranks(report)[1:]),
    ):
        yield report.keyed("pair", **other, **shown)


# -- flame graphs


def flames(report: Report) -> Iterator[KeyedAnswer]:
    """Flame graphs of the first rank for the usual measures, in both directions, few boxes each."""
    return flames_of(report, {"rank": str(report.rank)}, _FEW_BOXES, _FLAMES)


def flames_against_others(report: Report) -> Iterator[KeyedAnswer]:
    scope = {"rank": str(report.rank)} if report.steps else {}
    for id in report.compared:
        yield from flames_of(report, {**scope, "against": id}, _FEW_BOXES, _FLAMES)


def flames_of(
    report: Report, scope: dict[str, str], most: int, names: Collection[str] = ()
) -> Iterator[KeyedAnswer]:
    """Flame graphs in both directions, and the findings to mark in them."""
    known = report.ask("contexts", **scope).measures
    measures = [measure for measure in known if not names or measure.name in names]
    for by in ("", *(measure.name for measure in measures)):
        for up in ("", "1"):
            query = {**scope, "by": by, "up": up}
            graph = report.ask("contexts", **query, most=str(most))
            yield request_key("contexts", **query), replace(graph, measures=measures)
            if "against" not in scope:  # findings are about one trace
                marks = report.ask("context_findings", **query)
                yield request_key("context_findings", **query), _shown(marks, graph.boxes.node)


def _shown(marks: ContextFindings, nodes: list[int]) -> ContextFindings:
    shown = set(nodes)
    kept = (
        replace(finding, nodes=[node for node in finding.nodes if node in shown])
        for finding in marks.findings
    )
    return ContextFindings(list(kept))


# -- tiles and moments of the time axis


def axis_tiles(report: Report, step: str) -> Iterator[KeyedAnswer]:
    """The tiles of tracks and counters of a step's rank that show a part of it."""
    axis, rank = report.view.time_axis, StepId.of(step).rank
    level = report.view.timeline.level(step)
    tracks = [{"track": id} for id, one in axis.tracks.items() if one.rank == rank]
    counters = [{"counter": id} for id, one in axis.counters.items() if one.rank == rank]
    requests = [("slices", track) for track in tracks] + [("counter", one) for one in counters]
    return _tiles(report, requests, axis, (level.start_ns, level.reach_ns))


def memory_tiles(report: Report, device: str, by: str) -> Iterator[KeyedAnswer]:
    """The tiles of a device's memory that show a part of what the file covers."""
    wanted = [("memory_tile", {"device": device, "by": by})]
    return _tiles(report, wanted, report.ask("memory"), report.span)


def _tiles(
    report: Report, wanted: Iterable[tuple[str, dict[str, str]]], scale: Any, span: tuple[int, int]
) -> Iterator[KeyedAnswer]:
    """The tiles that show a part of a span, ns, zoom by zoom, none inside an exact one.

    The scale has `tile_ns`, the length of a tile at zoom 0, and the `deepest` zoom.
    """
    tiles = [(request, subject, 0) for request, subject in wanted]
    for zoom in range(scale.deepest + 1):
        length, inner = scale.tile_ns >> (zoom + 1), []
        for request, subject, tile in tiles:
            found = report.keyed(request, **subject, zoom=str(zoom), tile=str(tile))
            yield found
            halves = (2 * tile, 2 * tile + 1) if not found[1].exact else ()
            inner += [
                (request, subject, half)
                for half in halves
                if half * length < span[1] and (half + 1) * length > span[0]
            ]
        tiles = inner


def memory_moments(report: Report, device: str) -> Iterator[KeyedAnswer]:
    """What lives at moments evenly spread over what the file covers, the largest of it."""
    start, end = report.span
    for number in range(_MOMENTS):
        time = str(start + (end - start) * number // _MOMENTS)
        key, found = report.keyed("memory_moment", device=device, time=time)
        yield key, replace(found, living=found.living[:_MAX_LIVING])
