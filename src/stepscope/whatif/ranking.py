"""Every change that applies, by gain, and why the others do not apply."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import NotMeasured, StepscopeError
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.parallel import in_threads
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Prediction, Request
from stepscope.whatif.change import Change
from stepscope.whatif.prediction import MOST_TASKS, Baseline


def graph_of(trace: Trace, step: int | None, rank: int | None) -> Graph:
    """The dependency graph that a user asks for.

    Args:
        trace: an annotated trace.
        step: one step; by default the longest run of consecutive steps.
        rank: of the process; by default all ranks together.
    """
    steps = None if step is None else (step, step)
    return build_graph(trace, rank, steps) if rank is not None else build_ranks(trace, steps=steps)


@dataclass(frozen=True)
class Ranking:
    """Every change tried on its own.

    Attributes:
        gains: the predictions, largest gain first.
        reasons: why the others do not apply, by name.
        unmeasured: those of them that only want a calibration of the machine.
    """

    gains: list[Prediction]
    reasons: dict[str, str]
    unmeasured: list[str]


def rank_changes(graph: Graph) -> Ranking:
    """The prediction of each change on its own.

    Args:
        graph: of the steps as they were measured.
    """
    baseline = Baseline(graph)
    changes = [change for change in CHANGES.values() if change.ranked]
    tried = in_threads(lambda change: _tried(baseline, change), changes, len(graph), MOST_TASKS)
    gains = [one for one in tried if isinstance(one, Prediction)]
    errors = {
        change.name: one
        for change, one in zip(changes, tried, strict=True)
        if not isinstance(one, Prediction)
    }
    return Ranking(
        sorted(gains, key=lambda prediction: prediction.predicted_step_ms),
        {name: str(error).removeprefix(f"{name}: ") for name, error in errors.items()},
        [name for name, error in errors.items() if isinstance(error, NotMeasured)],
    )


def _tried(baseline: Baseline, change: Change) -> Prediction | StepscopeError:
    try:
        return baseline.predict_all([Request(change)])[0]
    except StepscopeError as error:
        return error
