"""Every change that applies, by gain, and why the others do not apply."""

from __future__ import annotations

from stepscope.errors import StepscopeError
from stepscope.graph import Graph
from stepscope.whatif import CHANGES, Prediction, Request
from stepscope.whatif.prediction import Baseline


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
