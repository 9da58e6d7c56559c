"""Questions that a reader of a single file may ask, and their answers, asked beforehand.

A file answers the same questions as the server, by the same functions. What would be long and is
seldom read is shortened.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from stepscope.annotate.steps import require_steps
from stepscope.errors import TraceError
from stepscope.serve.levels import names_of
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.serve.routes import answer
from stepscope.timeline.raw_events import Places, events_of
from stepscope.timeline.step_id import StepId

_MOST_STEPS, _MOST_RANKS = 20, 16
_MOST_KERNELS, _MOST_LINES, _MOST_FILES = 300, 300, 100
_FEW_ROWS = 5
_FEW_BOXES, _FLAMES = 2000, ("device", "cpu", "allocated")
Told = tuple[str, dict[str, Any]]


@dataclass(frozen=True)
class Subject:
    """What a file is about.

    Attributes:
        name: of the trace.
        opened: the trace.
        steps: paths of the steps whose timeline is told, the most important first; none of a file
            that holds collected contexts alone.
        scope: `rank` and `step` of the tables, where they are not those by default.
        sources: the files whose text is told.
    """

    name: str
    opened: OpenTrace
    steps: Sequence[str]
    scope: dict[str, str] = field(default_factory=dict)
    sources: Sequence[str] = ()

    def ask(self, question: str, **query: str) -> dict[str, Any]:
        """The server's answer."""
        return answer(self.opened, question, Query(query))


def subject_of(
    opened: OpenTrace, rank: int | None, step: int | None, sources: Sequence[str]
) -> Subject:
    """What a file is about: one step, on one rank first and then on the others.

    Of a trace that holds collected contexts and no step it is about these.

    Args:
        opened: the trace.
        rank: by default the one whose steps take longest.
        step: by default the rank's slowest.
        sources: the files whose text is told.

    Raises:
        TraceError: if there is no such rank or step.
    """
    name = Path(opened.trace.metadata.source).name or "trace"
    if opened.holds_contexts_alone and rank is None and step is None:
        return Subject(name, opened, [], {}, sources)
    require_steps(opened.trace)
    level = opened.timeline.level("", every=True)
    steps = (StepId.of(one.id) for one in level.operations)
    runtime = dict(zip(steps, level.costs.runtime_ns.tolist(), strict=True))
    mine = opened.rank if rank is None else rank
    known = [one for one in runtime if one.rank == mine]
    chosen = [one for one in known if step in (None, one.step)]
    if not chosen:
        wanted = "a step" if step is None else f"step {step}"
        found = [one.step for one in known] or "no such rank"
        raise TraceError(f"expected {wanted} of rank {mine}, found {found}")
    first = max(chosen, key=runtime.__getitem__)
    others = [one for one in runtime if one.step == first.step and one != first]
    scope = {"rank": str(mine), "step": "" if step is None else str(step)}
    return Subject(name, opened, [str(one) for one in (first, *others)], scope, sources)


def request_key(question: str, **query: str) -> str:
    """A question as the page asks it: parameters that are not empty, by name, quoted as in a URL.

    Example:
        >>> request_key("level", path="s5.0/t3", every="")
        'level?path=s5.0%2Ft3'
    """
    parts = [f"{key}={quote(text, safe=_PLAIN)}" for key, text in sorted(query.items()) if text]
    return f"{question}?{'&'.join(parts)}" if parts else question


_PLAIN = "!*'()"  # what JavaScript's encodeURIComponent leaves, and Python's quote does not


def tables(subject: Subject) -> Iterator[Told]:
    """Overview, modules, kernels, sources, and what the panes show for each of their rows."""
    yield "overview", {**subject.ask("overview", **subject.scope), "start": subject.steps[0]}
    for question in ("modules", "kernels"):
        yield question, subject.ask(question, **subject.scope)
    found = subject.ask("findings")
    yield "findings", found
    for scope in _scopes(subject):
        for question in ("overview", "modules", "kernels"):
            yield request_key(question, **scope), subject.ask(question, **scope)
    for every in ("", "1"):
        yield request_key("level", every=every), _first_level(subject, every)
    yield from sources(subject)
    yield from _choices(subject, len(found["findings"]))


def _scopes(subject: Subject) -> Iterator[dict[str, str]]:
    """Each rank, and each step of the rank that the file begins with."""
    first = str(StepId.of(subject.steps[0]).rank)
    overview = subject.ask("overview", **subject.scope)
    ranks = [str(rank) for rank in overview["ranks"][:_MOST_RANKS]]
    yield from ({"rank": rank} for rank in dict.fromkeys([first, *ranks]))
    steps = [str(one["step"]) for one in overview["steps"] if str(one["rank"]) == first]
    yield from ({"rank": first, "step": step} for step in steps[:_MOST_STEPS])


def flames(subject: Subject) -> Iterator[Told]:
    """Flame graphs of the first rank by the usual measures, both ways up, with few boxes."""
    scope = {"rank": str(StepId.of(subject.steps[0]).rank)}
    return flames_by(subject, scope, _FEW_BOXES, _FLAMES)


def flames_by(
    subject: Subject, scope: dict[str, str], most: int, names: Collection[str] = ()
) -> Iterator[Told]:
    """Flame graphs both ways up, and the findings to be marked in them.

    Args:
        subject: what a file is about.
        scope: `rank`, or nothing for all there is.
        most: boxes of each.
        names: of the measures; by default all.
    """
    told = subject.ask("contexts", **scope)["measures"]
    measures = [one for one in told if not names or one["name"] in names]
    for by in ("", *(one["name"] for one in measures)):
        for up in ("", "1"):
            asked = {**scope, "by": by, "up": up}
            graph = subject.ask("contexts", **asked, most=str(most))
            found = subject.ask("context_findings", **asked)["findings"]
            shown = set(graph["boxes"]["node"])
            nodes = [[node for node in one["nodes"] if node in shown] for one in found]
            yield request_key("contexts", **asked), graph | {"measures": measures}
            marks = [one | {"nodes": kept} for one, kept in zip(found, nodes, strict=True)]
            yield request_key("context_findings", **asked), {"findings": marks}


def _first_level(subject: Subject, every: str) -> dict[str, Any]:
    """The steps; those whose timeline is not in the file do not open."""
    told = subject.ask("level", every=every)
    steps = told["level"]["operations"]
    steps["opens"] = [int(id in subject.steps) for id in steps["id"]]
    return told


def sources(subject: Subject) -> Iterator[Told]:
    """Which source files there are, and of each its text and what its lines cost."""
    told = subject.ask("sources", **subject.scope)
    yield "sources", told
    for file in [one["file"] for one in told["files"][:_MOST_FILES]]:
        source = subject.ask("source", file=file, **subject.scope)
        if source["readable"] and file not in subject.sources:
            source |= {"readable": False, "text": None, "reason": "its text is not in this file"}
        yield request_key("source", file=file), source


def _choices(subject: Subject, findings: int) -> Iterator[Told]:
    """What the panes show for each module, kernel, line and finding."""
    path = subject.steps[0]
    modules = range(len(subject.opened.trace["modules"]))
    rows = subject.ask("kernels", **subject.scope)["rows"][:_MOST_KERNELS]
    costs, _ = subject.opened.line_costs(subject.opened.rank_of(Query(subject.scope)), None)
    costs = sorted(costs, key=lambda one: -max(sum(one.cpu_ns), sum(one.device_ns)))[:_MOST_LINES]
    lines = dict.fromkeys((one.place.file, str(one.place.line)) for one in costs)
    for chosen in (
        *({"module": str(module)} for module in modules),
        *({"kernel": row["name"]} for row in rows),
        *({"file": file, "line": line} for file, line in lines),
        *({"finding": str(number)} for number in range(findings)),
    ):
        told = subject.ask("select", **chosen, path=path)
        del told["levels"]  # of what is on screen, which is not known yet
        yield request_key("select", **chosen), told


class Walk:
    """The timeline of a step, the costliest operations first, as far as there is room for it.

    Args:
        subject: what the file is about.
        step: path of the step.

    Attributes:
        step: as given.
        events: raw events of the step.
        unseen: operations that open, and are not told of yet, by cost: a heap.
    """

    def __init__(self, subject: Subject, step: str) -> None:
        self._subject, self.step = subject, step
        timeline = subject.opened.timeline
        self.events = timeline.raw_events(step)
        self._paths = [step]
        self._place = np.full(len(subject.opened.trace.events), -1, np.int64)
        self._place[self.events] = 0
        self.unseen = [(0, step)]

    def __iter__(self) -> Iterator[list[Told]]:
        """The answers about each level, as one piece: without one of them the rest is of no use."""
        yield [self._details(self.step)]
        while self.unseen:
            _, path = heappop(self.unseen)
            yield list(self._level(path))

    def _level(self, path: str) -> Iterator[Told]:
        timeline = self._subject.opened.timeline
        every = shown = timeline.level(path)
        yield request_key("level", path=path), self._subject.ask("level", path=path)
        if any(not one.shown for one in shown.resources):
            every = timeline.level(path, every=True)
            query = {"every": "1", "path": path}
            yield request_key("level", **query), self._subject.ask("level", **query)
        for number, operation in enumerate(every.operations):
            inner = f"{path}/{operation.id}"
            yield self._details(inner)
            self._place[events_of(timeline.index, operation)] = len(self._paths)
            self._paths.append(inner)
            if every.costs.events[number] > 1:
                heappush(self.unseen, (-int(every.costs.runtime_ns[number]), inner))

    def _details(self, path: str) -> Told:
        told = self._subject.ask("details", path=path)
        for part in ("instances", "device_work"):
            if told[part]:
                told[part] = {**told[part], "rows": told[part]["rows"][:_FEW_ROWS]}
        told["selects"] = {name: rows[:_FEW_ROWS] for name, rows in told["selects"].items()}
        return request_key("details", path=path), told

    def names(self) -> Told:
        """The names of all raw events, and the smallest operation told of that holds each."""
        places = Places(self.events, self._paths, self._place[self.events])
        told = names_of(self._subject.opened, self.step, places)
        return request_key("names", path=self.step), told
