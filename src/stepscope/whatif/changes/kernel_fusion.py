"""`kernel_fusion`: chains of elementwise kernels, fused."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, select
from stepscope.trace.schema import FORWARD_STAGES
from stepscope.whatif.change import Change

_ESTIMATES = ("low", "typical", "high")


def kernel_fusion(graph: Graph, estimate: str = "typical") -> Graph:
    """Consecutive elementwise kernels of a stream become one, as with torch.compile.

    A fused kernel takes as long as the longest kernel of its chain; the other launches go.

    Args:
        graph: any graph.
        estimate: a fused kernel takes as long as its whole chain (`low`: only launches are saved),
            its longest kernel (`typical`: intermediate values stay in registers) or the mean of
            its kernels (`high`).

    Raises:
        ChangeError: if there is no device work, or no two elementwise kernels are consecutive.

    Source: DAYDREAM table 1 ("Fusing Kernels/Layers").
    """
    if estimate not in _ESTIMATES:
        raise ChangeError(f"kernel_fusion: expected estimate={' or '.join(_ESTIMATES)}, "
                          f"found {estimate!r}")  # fmt: skip
    if not select(graph, category="kernel", on_device=True).any():
        raise ChangeError("kernel_fusion: these steps have no device work")
    first, chain = _chains(graph)
    if len(chain) == len(first):
        raise ChangeError("kernel_fusion: no two elementwise kernels are consecutive")
    length = graph.tasks["duration_ns"].copy()
    times = length[chain]
    count = np.diff(np.append(first, len(chain)))
    total, longest = np.add.reduceat(times, first), np.maximum.reduceat(times, first)
    length[chain[first]] = {"low": total, "typical": longest, "high": total // count}[estimate]
    gone = np.zeros(len(graph), np.bool_)
    gone[np.delete(chain, first)] = True
    return remove(graph.with_tasks(duration_ns=length), gone)


def _chains(graph: Graph) -> tuple[Ids, Ids]:
    """Where chains begin among the elementwise kernels of forward and backward; the kernels."""
    fusible = select(graph, kind="elementwise", category="kernel", on_device=True)
    fusible &= graph.tasks.text("stage").mask(*FORWARD_STAGES, "backward")
    fusible &= ~select(graph, operator="*[cC]onv*")  # layout conversions
    rows = np.flatnonzero(fusible)
    if not len(rows):
        return rows, rows
    key = [graph.tasks[name][rows] for name in ("thread", "stage", "step")]
    breaks = np.any([np.diff(column) != 0 for column in key], axis=0) | (np.diff(rows) != 1)
    return np.flatnonzero(np.append(True, breaks)), rows


CHANGE = Change(
    kernel_fusion,
    group="Compute",
    basis="the longest measured kernel of each chain",
    assumptions=(
        "consecutive elementwise kernels depend on nothing else",
        "a fused kernel takes as long as the longest one it replaces; operators cost the CPU what "
        "they did, except for the launches",
    ),
    low={"estimate": "low"},
    high={"estimate": "high"},
)
