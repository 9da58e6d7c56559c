"""What the report in a single file is about, and how its questions are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stepscope.annotate.steps import require_steps
from stepscope.errors import TraceError
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.serve.routes import answer
from stepscope.timeline.step_id import StepId

_PLAIN = "!*'()"  # what JavaScript's encodeURIComponent leaves, and Python's quote does not
Told = tuple[str, dict[str, Any]]
"""A question as the page asks it, and its answer."""


@dataclass(frozen=True)
class Report:
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

    @property
    def rank(self) -> int:
        """The rank that the file begins with."""
        return StepId.of(self.steps[0]).rank

    def ask(self, question: str, **query: str) -> dict[str, Any]:
        """The server's answer."""
        return answer(self.opened, question, Query(query))


def report_of(
    opened: OpenTrace, rank: int | None, step: int | None, sources: Sequence[str]
) -> Report:
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
        return Report(name, opened, [], {}, sources)
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
    return Report(name, opened, [str(one) for one in (first, *others)], scope, sources)


def request_key(question: str, **query: str) -> str:
    """A question as the page asks it: parameters that are not empty, by name, quoted as in a URL.

    Example:
        >>> request_key("level", path="s5.0/t3", every="")
        'level?path=s5.0%2Ft3'
    """
    parts = [f"{key}={quote(text, safe=_PLAIN)}" for key, text in sorted(query.items()) if text]
    return f"{question}?{'&'.join(parts)}" if parts else question
