"""`no_sync`: what if the CPU did not stop to wait for the device?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select
from stepscope.graph.select import matching


def no_sync(graph: Graph, name: str = "*", operator: str = "*", awaits: str = "*") -> Graph:
    """Calls that wait for the device return at once; with NAME, only calls that match this glob.

    With OPERATOR, only calls inside an operator that matches it; with AWAITS, only where the device
    work that they wait for does.

    Explicit synchronisations go altogether; copies to the host stay, but nothing waits for them.

    Raises:
        ChangeError: if no such call waits.
    """
    waits = np.zeros(len(graph), np.bool_)
    tied = graph.links.text("kind").mask("synchronisation", "communication")
    tied &= matching(graph.tasks.text("name"), awaits)[graph.links["source"]]
    waits[graph.links["target"][tied]] = True
    waits &= select(graph, name=name, operator=operator, on_device=False)
    if not waits.any():
        globs = " ".join(glob for glob in (name, operator, awaits) if glob != "*") or "*"
        raise ChangeError(f"no_sync: no call that matches {globs!r} waits for the device")
    links = graph.links.take(~(tied & waits[graph.links["target"]]))
    events = graph.tasks["event"]
    calls = np.isin(events, events[waits]) & ~graph.on_device
    explicit = calls & select(graph, name="*Synchronize*")
    return remove(replace(graph, links=links), explicit, calls=False)
