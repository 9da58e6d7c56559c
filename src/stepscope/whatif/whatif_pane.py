"""Answers for the what-if pane: which changes apply, their prediction, two timelines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any

from stepscope.errors import StepscopeError
from stepscope.graph import Graph, Simulation, build_graph, build_ranks
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Change, Request, parse_request
from stepscope.whatif.prediction import Baseline
from stepscope.whatif.simulated_timeline import rectangles

Json = dict[str, Any]


class Pane:
    """The what-ifs of one trace; the graph is built once.

    Args:
        trace: an annotated trace.
        rank: one rank alone; by default all ranks of the trace together.
        step: one step; by default the longest run of consecutive steps.

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

        A parameter has `name`, `type`, `default` (None if it is required) and `meaning`. If a
        change does not apply to this trace, `reason` says why.
        """
        return [self._described(change) for change in CHANGES.values()]

    def answer(self, changes: Sequence[str], most: int = 2000) -> Json:
        """The prediction, and the timelines before and after.

        Args:
            changes: as on the command line (`bandwidth:factor=2`), in the order of application.
            most: the maximum number of rectangles of a timeline.

        Returns:
            `answer`, as in `stepscope whatif --json`; `timeline` with `threads` (`name`,
            `kind`, `rank`), and `before` and `after`, each `length_us` and the columns of
            `rectangles`, whose `thread` is an index into `threads`.

        Raises:
            ChangeError: if there is no such change or one does not apply, with the reason.
        """
        requests = [parse_request(text, CHANGES) for text in changes]
        prediction, after = self._baseline.predict_all(requests)
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
            "parameters": [asdict(one) for one in change.parameters.values()],
            "assumptions": list(change.assumptions),
            **self._applies(change),
        }

    def _applies(self, change: Change) -> Json:
        missing = [one.name for one in change.parameters.values() if one.default is None]
        if missing:
            return {"applies": True, "reason": f"needs {' and '.join(missing)}"}
        try:
            Request(change).apply(self.graph)
        except StepscopeError as error:
            return {"applies": False, "reason": str(error).removeprefix(f"{change.name}: ")}
        return {"applies": True, "reason": ""}


def _drawn(simulation: Simulation, most: int) -> Json:
    return {"length_us": simulation.last_end_ns / 1000, **rectangles(simulation, most)}
