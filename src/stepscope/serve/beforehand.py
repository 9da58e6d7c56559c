"""The tables of a single file: what a reader may ask of them, and the answers, asked beforehand.

A file answers the same questions as the server, by the same functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from stepscope.serve.query import Query
from stepscope.serve.report import Report, Told, request_key

_MOST_STEPS, _MOST_RANKS = 20, 16
_MOST_KERNELS, _MOST_LINES, _MOST_FILES = 300, 300, 100
_FEW_BOXES, _FLAMES = 2000, ("device", "cpu", "allocated")


def tables(report: Report) -> Iterator[Told]:
    """Overview, modules, kernels, sources, and what the panes show for each of their rows."""
    yield "overview", {**report.ask("overview", **report.scope), "start": report.steps[0]}
    for question in ("modules", "kernels"):
        yield question, report.ask(question, **report.scope)
    found = report.ask("findings")
    yield "findings", found
    for scope in _scopes(report):
        for question in ("overview", "modules", "kernels"):
            yield request_key(question, **scope), report.ask(question, **scope)
    for every in ("", "1"):
        yield request_key("level", every=every), _first_level(report, every)
    yield from sources(report)
    yield from _choices(report, len(found["findings"]))


def _scopes(report: Report) -> Iterator[dict[str, str]]:
    """Each rank, and each step of the rank that the file begins with."""
    first = str(report.rank)
    overview = report.ask("overview", **report.scope)
    ranks = [str(rank) for rank in overview["ranks"][:_MOST_RANKS]]
    yield from ({"rank": rank} for rank in dict.fromkeys([first, *ranks]))
    steps = [str(one["step"]) for one in overview["steps"] if str(one["rank"]) == first]
    yield from ({"rank": first, "step": step} for step in steps[:_MOST_STEPS])


def flames(report: Report) -> Iterator[Told]:
    """Flame graphs of the first rank by the usual measures, both ways up, with few boxes."""
    scope = {"rank": str(report.rank)}
    return flames_by(report, scope, _FEW_BOXES, _FLAMES)


def flames_by(
    report: Report, scope: dict[str, str], most: int, names: Collection[str] = ()
) -> Iterator[Told]:
    """Flame graphs both ways up, and the findings to be marked in them.

    Args:
        report: what a file is about.
        scope: `rank`, or nothing for all there is.
        most: boxes of each.
        names: of the measures; by default all.
    """
    told = report.ask("contexts", **scope)["measures"]
    measures = [one for one in told if not names or one["name"] in names]
    for by in ("", *(one["name"] for one in measures)):
        for up in ("", "1"):
            asked = {**scope, "by": by, "up": up}
            graph = report.ask("contexts", **asked, most=str(most))
            found = report.ask("context_findings", **asked)["findings"]
            shown = set(graph["boxes"]["node"])
            nodes = [[node for node in one["nodes"] if node in shown] for one in found]
            yield request_key("contexts", **asked), graph | {"measures": measures}
            marks = [one | {"nodes": kept} for one, kept in zip(found, nodes, strict=True)]
            yield request_key("context_findings", **asked), {"findings": marks}


def _first_level(report: Report, every: str) -> dict[str, Any]:
    """The steps; those whose timeline is not in the file do not open."""
    told = report.ask("level", every=every)
    steps = told["level"]["operations"]
    steps["opens"] = [int(id in report.steps) for id in steps["id"]]
    return told


def sources(report: Report) -> Iterator[Told]:
    """Which source files there are, and of each its text and what its lines cost."""
    told = report.ask("sources", **report.scope)
    yield "sources", told
    for file in [one["file"] for one in told["files"][:_MOST_FILES]]:
        source = report.ask("source", file=file, **report.scope)
        if source["readable"] and file not in report.sources:
            source |= {"readable": False, "text": None, "reason": "its text is not in this file"}
        yield request_key("source", file=file), source


def _choices(report: Report, findings: int) -> Iterator[Told]:
    """What the panes show for each module, kernel, line and finding."""
    path = report.steps[0]
    modules = range(len(report.opened.trace["modules"]))
    rows = report.ask("kernels", **report.scope)["rows"][:_MOST_KERNELS]
    costs, _ = report.opened.line_costs(report.opened.rank_of(Query(report.scope)), None)
    costs = sorted(costs, key=lambda one: -max(sum(one.cpu_ns), sum(one.device_ns)))[:_MOST_LINES]
    lines = dict.fromkeys((one.place.file, str(one.place.line)) for one in costs)
    for chosen in (
        *({"module": str(module)} for module in modules),
        *({"kernel": row["name"]} for row in rows),
        *({"file": file, "line": line} for file, line in lines),
        *({"finding": str(number)} for number in range(findings)),
    ):
        told = report.ask("select", **chosen, path=path)
        del told["levels"]  # of what is on screen, which is not known yet
        yield request_key("select", **chosen), told
