"""`stateless_optimizer`: an optimizer that keeps nothing from step to step."""

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select
from stepscope.models.memory.owners import OPTIMIZER, TEMPORARIES
from stepscope.models.memory.recorded_memory import RecordedMemory
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.layers import weight_update
from stepscope.trace.nesting import inherit
from stepscope.trace.schema import STAGES

_PASSES = 3 / 7  # reads weight and gradient, writes weight; Adam also reads and writes its moments


def stateless_optimizer(graph: Graph) -> Graph:
    """SGD without momentum instead of an optimizer with state, such as Adam.

    Each weight update keeps only its last operator (`addcdiv`), which reads and writes what plain
    SGD does. Where one kernel does all, it moves three of seven values.
    """
    update = weight_update(graph, "stateless_optimizer")
    events = graph.trace.events
    named = events.text("name").where(lambda name: "addcdiv" in name)
    last = np.append(inherit(events["parent"], np.where(named, 1, -1)) > 0, False)[graph.tasks["event"]]
    if not (update & last).any():
        adds, multiplies = (
            select(graph, stage="optimizer", operator=f"aten::*{name}*").any() for name in ("add", "mul")
        )
        if adds and not multiplies:
            raise ChangeError("stateless_optimizer: the optimizer keeps no state, it only adds gradients")
        return scale(graph, update, _PASSES)
    return scale(graph, update & ~last, 0, gaps=True)


def without_state(memory: RecordedMemory) -> RecordedMemory:
    """The memory with an optimizer such as SGD without momentum."""
    life = memory.lifetimes
    state = life.kind == OPTIMIZER
    if not (state & (life.bytes > 0)).any():
        raise ChangeError("stateless_optimizer: the optimizer keeps no state, or none was recorded")
    stage = np.append(memory.recording.stage, -1)[life.recorded]
    own = (life.kind == TEMPORARIES) & (stage == STAGES.index("optimizer"))
    return memory.with_lifetimes(life.changed(bytes=np.where(state | own, 0, life.bytes)))


CHANGE = Change(
    stateless_optimizer,
    group="Memory",
    basis="the measured update without the operators for its state",
    assumptions=("the model still trains well, which a prediction cannot know",),
    ranked=False,
    memory=without_state,
    memory_error=0.02,
)
