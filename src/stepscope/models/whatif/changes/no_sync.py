"""`no_sync`: the CPU does not wait for the device."""

from dataclasses import replace

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select
from stepscope.graph.primitives import matching
from stepscope.models.whatif.change import Change


def no_sync(graph: Graph, name: str = "*", operator: str = "*", awaits: str = "*") -> Graph:
    """Calls that wait for the device return at once.

    Explicit synchronizations take no time. Python after them stays, and copies to the host, for
    which nothing waits. This is not `no_sync()` of DistributedDataParallel: waits for ranks stay.

    Args:
        graph: any graph; a wait for other ranks on a CPU alone is none for a device.
        name: glob for the names of the calls.
        operator: glob for the operators around the calls.
        awaits: glob for the device work that the calls wait for.
    """
    waits = np.zeros(len(graph), np.bool_)
    tied = graph.links.text("kind").mask("synchronization", "communication")
    tied &= graph.on_device[graph.links["source"]]
    tied &= matching(graph.tasks.text("name"), awaits)[graph.links["source"]]
    waits[graph.links["target"][tied]] = True
    waits &= select(graph, name=name, operator=operator, on_device=False)
    if not waits.any():
        globs = " ".join(glob for glob in (name, operator, awaits) if glob != "*") or "*"
        raise ChangeError(f"no_sync: no call that matches {globs!r} waits for the device")
    links = graph.links.take(~(tied & waits[graph.links["target"]]))
    events = graph.tasks["event"]
    calls = np.isin(events, events[waits]) & ~graph.on_device
    return scale(replace(graph, links=links), calls & select(graph, name="*Synchronize*"), 0)


CHANGE = Change(
    no_sync,
    group="Launches and waits",
    basis="the measured steps without these waits",
    assumptions=("nothing that the CPU does next needs the result that it waited for",),
)
