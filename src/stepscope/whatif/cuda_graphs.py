"""`cuda_graphs`: what if the device were given the whole step at once?"""

from __future__ import annotations

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, scale, select

_CAPTURED = ("forward", "loss", "zero_grad", "backward", "optimizer")


def cuda_graphs(graph: Graph) -> Graph:
    """Work on the device is replayed from a CUDA graph: the CPU's part of the step takes no time.

    Raises:
        ChangeError: if no device works, or CUDA graphs are used already.
    """
    if not graph.on_device.any():
        raise ChangeError("cuda_graphs: no work on a device in these steps")
    if select(graph, name="*GraphLaunch*").any():
        raise ChangeError("cuda_graphs: these steps launch CUDA graphs already")
    captured = np.any([select(graph, stage=s, on_device=False) for s in _CAPTURED], axis=0)
    if not captured.any():
        raise ChangeError(
            "cuda_graphs: no call on the CPU is of forward, backward or optimizer; a step that was "
            "compiled whole is launched as such already"
        )
    return scale(graph, captured, 0, gaps=True)
