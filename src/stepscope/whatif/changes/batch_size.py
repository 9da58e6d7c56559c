"""`batch_size`: more or fewer samples in each step."""

from __future__ import annotations

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale
from stepscope.trace.schema import FORWARD_STAGES
from stepscope.whatif.change import Change
from stepscope.whatif.memory_effects.batch_scaling import with_batch
from stepscope.whatif.parts.layers import working

_STAGES = ("data_loading", "transfer", *FORWARD_STAGES, "backward")


def batch_size(graph: Graph, factor: float) -> Graph:
    """Each step has so many times as many samples.

    Work of the model grows with them; the optimizer and launches do not. `stepscope batch`
    measures it instead.

    Args:
        graph: of training steps.
        factor: how many times as many samples.

    Raises:
        ChangeError: if the factor is not above 0.
    """
    if factor <= 0:
        raise ChangeError(f"batch_size: expected factor above 0, found {factor}")
    return scale(graph, working(graph) & graph.tasks.text("stage").mask(*_STAGES), factor)


CHANGE = Change(
    batch_size,
    group="Memory",
    basis="the measured work of the model, in proportion to the samples",
    assumptions=("an operator's time grows with its samples, so that kernels are not half empty",),
    ranked=False,
    memory=with_batch,
    memory_error=0.02,
)
