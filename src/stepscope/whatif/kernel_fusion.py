"""`kernel_fusion`: what if chains of elementwise kernels were one kernel each?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select

_ESTIMATES = ("low", "typical", "high")


def kernel_fusion(graph: Graph, estimate: str = "typical") -> Graph:
    """Elementwise kernels that follow each other on a stream become one, as torch.compile does.

    Args:
        graph: any graph.
        estimate: a fused kernel takes as long as all of its chain (`low`: only launches are saved),
            the longest of it (`typical`: what is between them stays in registers) or their mean
            (`high`).

    Raises:
        ChangeError: if there is no device, or no two elementwise kernels follow each other.

    Source: DAYDREAM table 1 ("Fusing Kernels/Layers").
    """
    if estimate not in _ESTIMATES:
        raise ChangeError(f"kernel_fusion: expected estimate {' or '.join(_ESTIMATES)}, "
                          f"found {estimate!r}")  # fmt: skip
    if not select(graph, category="kernel", on_device=True).any():
        raise ChangeError("kernel_fusion: no work on a device in these steps")
    first, chain = _chains(graph)
    if len(chain) == len(first):
        raise ChangeError("kernel_fusion: no two elementwise kernels follow each other")
    length = graph.tasks["duration_ns"].copy()
    times = length[chain]
    count = np.diff(np.append(first, len(chain)))
    total, longest = np.add.reduceat(times, first), np.maximum.reduceat(times, first)
    length[chain[first]] = {"low": total, "typical": longest, "high": total // count}[estimate]
    gone = np.zeros(len(graph), np.bool_)
    gone[np.delete(chain, first)] = True
    return remove(graph.with_tasks(duration_ns=length), gone)


def _chains(graph: Graph) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Elementwise kernels of forward and backward, and where among them a chain begins."""
    fusible = select(graph, kind="elementwise", category="kernel", on_device=True)
    fusible &= graph.tasks.text("stage").mask("forward", "loss", "backward")
    fusible &= ~select(graph, operator="*[cC]onv*")  # what changes its tensors' layouts
    rows = np.flatnonzero(fusible)
    if not len(rows):
        return rows, rows
    key = [graph.tasks[name][rows] for name in ("thread", "stage", "step")]
    breaks = np.any([np.diff(column) != 0 for column in key], axis=0) | (np.diff(rows) != 1)
    return np.flatnonzero(np.append(True, breaks)), rows
