"""An optimizer without state: nothing is kept for it, and its step allocates nothing."""

from __future__ import annotations

import numpy as np

from stepscope.errors import ChangeError
from stepscope.memory.owners import KINDS
from stepscope.memory.recorded_memory import RecordedMemory
from stepscope.trace.schema import STAGES

_STATE, _TEMPORARY = KINDS.index("optimizer state"), KINDS.index("temporaries")


def without_state(memory: RecordedMemory) -> RecordedMemory:
    """The memory with an optimizer such as SGD without momentum.

    Raises:
        ChangeError: if the optimizer keeps no state.
    """
    life = memory.lifetimes
    state = life.kind == _STATE
    if not (state & (life.bytes > 0)).any():
        raise ChangeError("stateless_optimizer: the optimizer keeps no state, or none was recorded")
    stage = np.append(memory.recording.stage, -1)[life.recorded]
    own = (life.kind == _TEMPORARY) & (stage == STAGES.index("optimizer"))
    return memory.with_lifetimes(life.changed(bytes=np.where(state | own, 0, life.bytes)))
