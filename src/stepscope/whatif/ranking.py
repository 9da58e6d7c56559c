"""Every change that applies, by gain; and why the others do not."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.graph import Graph
from stepscope.whatif import CHANGES, Prediction, Request, predict


def rank_changes(graph: Graph) -> tuple[list[Prediction], dict[str, str]]:
    """The prediction of each change on its own, largest gain first.

    Args:
        graph: of the steps as they were measured.

    Returns:
        The predictions, and by name the reason of each change that does not apply.
    """
    gains, reasons = [], {}
    for change in CHANGES.values():
        if not change.ranked:
            continue
        try:
            gains.append(predict(graph, [Request(change)]))
        except StepscopeError as error:
            reasons[change.name] = str(error).removeprefix(f"{change.name}: ")
    return sorted(gains, key=lambda one: one.predicted_step_ms), reasons
