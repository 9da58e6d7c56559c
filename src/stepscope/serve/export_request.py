"""What a report in a single file covers, and how its requests are written as keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

from stepscope.annotate.steps.requested_steps import missing_steps
from stepscope.annotate.steps.steps import require_steps
from stepscope.errors import TraceError
from stepscope.serve.request_parameters import Query
from stepscope.serve.routes import answer
from stepscope.serve.trace_view import TraceView
from stepscope.timeline.operation import StepId

_UNQUOTED = "!*'()"  # encodeURIComponent leaves these as they are, Python's quote does not
KeyedAnswer = tuple[str, msgspec.Struct]
"""A request as the page writes it, and its answer."""


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
