"""The updates of optimizers that torch.optim can fuse."""

from __future__ import annotations

import re

import numpy as np

from stepscope.arrays import Ids
from stepscope.graph import Graph, inherited, select

FUSIBLE = ("Adam", "AdamW", "SGD", "Adagrad")  # these take `fused=True` in torch.optim
_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")


def optimizer_class(name: str) -> str:
    """The class whose step an event is, by the event's name; empty for another event."""
    found = _STEP.match(name)
    return found[1] if found else ""


def fusible_steps(graph: Graph) -> Ids:
    """The `Optimizer.step` event of a fusible class that each task updates weights in; else -1.

    What a closure runs in such a step is no update, as the training step of Lightning.
    """
    events = graph.trace.events
    named = events.text("name").where(lambda name: optimizer_class(name) in FUSIBLE)
    around = inherited(graph, np.where(named, events["id"], -1))
    return np.where(select(graph, stage="optimizer"), around, -1)
