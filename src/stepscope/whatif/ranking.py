"""Every change that applies, by gain, and why the others do not apply."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.trace.trace import Trace
from stepscope.whatif import CHANGES, Prediction, Request
from stepscope.whatif.prediction import Baseline


def graph_of(trace: Trace, step: int | None, rank: int | None) -> Graph:
    """The dependency graph that a user asks for.

    Args:
        trace: an annotated trace.
        step: one step; by default the longest run of consecutive steps.
        rank: of the process; by default all ranks together.
    """
    steps = None if step is None else (step, step)
    return build_graph(trace, rank, steps) if rank is not None else build_ranks(trace, steps=steps)


def rank_changes(graph: Graph) -> tuple[list[Prediction], dict[str, str]]:
    """The prediction of each change on its own, largest gain first.

    Args:
        graph: of the steps as they were measured.

    Returns:
        The predictions, and the reason by name of each change that does not apply.
    """
    baseline, gains, reasons = Baseline(graph), [], {}
    for change in CHANGES.values():
        if not change.ranked:
            continue
        try:
            gains.append(baseline.predict_all([Request(change)])[0])
        except StepscopeError as error:
            reasons[change.name] = str(error).removeprefix(f"{change.name}: ")
    return sorted(gains, key=lambda prediction: prediction.predicted_step_ms), reasons
