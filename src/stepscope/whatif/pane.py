"""What a page with changes to switch on and off needs: what applies, the answer, two timelines."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.graph import Graph, Simulation, build_graph, build_ranks
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Change, Request, parse_request
from stepscope.whatif.prediction import Baseline
from stepscope.whatif.rectangles import rectangles

Json = dict[str, Any]
_ARGUMENT = re.compile(r"^    (\w+): (.+(?:\n        .+)*)", re.MULTILINE)


class Pane:
    """The what-ifs of one trace; the graph is built once, and answers are quick.

    Args:
        trace: an annotated trace.
        rank: one rank alone; by default all ranks of the trace together.
        step: one step; by default the longest row of consecutive ones.

    Raises:
        TraceError: if there is no such step.

    Example:
        >>> pane = Pane(stepscope.open("run.stepscope"))  # doctest: +SKIP
        >>> pane.answer(["amp", "bandwidth:factor=2"])["answer"]["speedup"]  # doctest: +SKIP
    """

    def __init__(self, trace: Trace, rank: int | None = None, step: int | None = None) -> None:
        steps = None if step is None else (step, step)
        graph = build_ranks(trace, steps=steps) if rank is None else build_graph(trace, rank, steps)
        self._baseline = Baseline(graph)
        self._drawn: dict[int, Json] = {}

    @property
    def graph(self) -> Graph:
        """The graph without a change."""
        return self._baseline.graph

    @cached_property
    def changes(self) -> list[Json]:
        """Every change: `name`, `summary`, `parameters`, `assumptions`, and whether it `applies`.

        A parameter has `name`, `type`, `default` (None where one has to be given) and `meaning`.
        Where a change does not apply to this trace as it is, `reason` says why.
        """
        return [self._described(change) for change in CHANGES.values()]

    def answer(self, changes: Sequence[str], most: int = 2000) -> Json:
        """The prediction, and the timelines before and after.

        Args:
            changes: as on the command line (`bandwidth:factor=2`), in the order of application.
            most: how many rectangles a timeline has at most.

        Returns:
            `answer`, as `stepscope whatif --json` has it; `timeline` with `threads` (`name`,
            `kind`, `rank`), and `before` and `after`, each `length_us` and the columns of
            `rectangles`, whose `thread` is a place in `threads`.

        Raises:
            ChangeError: if there is no such change or one does not apply, with the reason.
        """
        requests = [parse_request(text, CHANGES) for text in changes]
        prediction, after = self._baseline.predict(requests)
        threads = after.graph.threads
        facts = ([*threads.text("name")], [*threads.text("kind")], threads["rank"].tolist())
        return {
            "answer": prediction.to_json(),
            "timeline": {
                "threads": [dict(zip(("name", "kind", "rank"), one, strict=True))
                            for one in zip(*facts, strict=True)],
                "before": self._before(most),
                "after": _drawn(after, most),
            },
        }  # fmt: skip

    def _before(self, most: int) -> Json:
        if most not in self._drawn:
            self._drawn[most] = _drawn(self._baseline.simulation, most)
        return self._drawn[most]

    def _described(self, change: Change) -> Json:
        return {
            "name": change.name,
            "summary": change.summary,
            "parameters": _parameters(change),
            "assumptions": list(change.assumptions),
            **self._applies(change),
        }

    def _applies(self, change: Change) -> Json:
        missing = [one["name"] for one in _parameters(change) if one["default"] is None]
        if missing:
            return {"applies": True, "reason": f"needs {' and '.join(missing)}"}
        try:
            Request(change).apply(self.graph)
        except StepscopeError as error:
            return {"applies": False, "reason": str(error).removeprefix(f"{change.name}: ")}
        return {"applies": True, "reason": ""}


def _drawn(simulation: Simulation, most: int) -> Json:
    return {"length_us": simulation.last_end_ns / 1000, **rectangles(simulation, most)}


def _parameters(change: Change) -> list[Json]:
    meanings = _meanings(change)
    return [
        {
            "name": name,
            "type": str(parameter.annotation),
            "default": None if parameter.default is inspect.Parameter.empty else parameter.default,
            "meaning": meanings.get(name, ""),
        }
        for name, parameter in change.parameters.items()
    ]


def _meanings(change: Change) -> dict[str, str]:
    """What the docstring says of each parameter."""
    text = inspect.getdoc(change.function) or ""
    section = text.partition("Args:\n")[2].partition("\n\n")[0]
    found = _ARGUMENT.findall(section)
    return {name: " ".join(line.strip() for line in said.split("\n")) for name, said in found}
