"""`stateless_optimizer`: an optimizer that keeps nothing from step to step."""

from __future__ import annotations

import numpy as np

from stepscope.graph import Graph, scale
from stepscope.trace.nesting import inherit
from stepscope.whatif.change import Change
from stepscope.whatif.memory_effects.optimizer_state import without_state
from stepscope.whatif.parts.layers import weight_update

_PASSES = 3 / 7  # reads weight and gradient, writes weight; Adam also reads and writes its moments


def stateless_optimizer(graph: Graph) -> Graph:
    """SGD without momentum instead of an optimizer with state, such as Adam.

    Each weight update keeps only its last operator (`addcdiv`), which reads and writes what plain
    SGD does. Where one kernel does all, it moves three of seven values.

    Args:
        graph: of training steps.

    Raises:
        ChangeError: if there is no weight update.
    """
    update = weight_update(graph, "stateless_optimizer")
    events = graph.trace.events
    named = events.text("name").where(lambda name: "addcdiv" in name)
    inside = inherit(events["parent"], np.where(named, 1, -1)) > 0
    last = np.append(inside, False)[graph.tasks["event"]]
    if not (update & last).any():
        return scale(graph, update, _PASSES)
    return scale(graph, update & ~last, 0, gaps=True)


CHANGE = Change(
    stateless_optimizer,
    group="Memory",
    basis="the measured update without the operators for its state",
    assumptions=("the model still trains well, which a prediction cannot know",),
    ranked=False,
    memory=without_state,
    memory_error=0.02,
)
