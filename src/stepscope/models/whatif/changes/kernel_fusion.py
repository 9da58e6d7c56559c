"""`kernel_fusion`: chains of elementwise kernels, fused."""

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.device.kernel_kinds import is_fused
from stepscope.facts.annotate.jax.scopes import programs
from stepscope.graph import Graph, removed_by, select, without
from stepscope.models.whatif.change import Change
from stepscope.trace.schema import PASS_STAGES

_ESTIMATES = ("low", "typical", "high")


def kernel_fusion(graph: Graph, estimate: str = "typical") -> Graph:
    """Consecutive elementwise kernels of a stream become one, as with torch.compile.

    A fused kernel takes as long as the longest kernel of its chain; the other launches go. Of XLA's
    kernels, those of one program stay apart.

    Args:
        estimate: a fused kernel takes as long as its whole chain (`low`: only launches are saved),
            its longest kernel (`typical`: intermediate values stay in registers) or the mean of
            its kernels (`high`).

    Source: DAYDREAM table 1 ("Fusing Kernels/Layers").
    """
    if estimate not in _ESTIMATES:
        raise ChangeError(f"kernel_fusion: expected estimate={' or '.join(_ESTIMATES)}, found {estimate!r}")
    if not select(graph, category="kernel", on_device=True).any():
        raise ChangeError("kernel_fusion: these steps have no device work")
    first, chain = graph.once(_chains)
    if len(chain) == len(first):
        raise ChangeError("kernel_fusion: no two consecutive kernels (in XLA: programs) are elementwise")
    length = graph.tasks["duration_ns"].copy()
    total = np.add.reduceat(length[chain], first)
    longest = np.maximum.reduceat(length[chain], first)
    mean = total // np.diff(np.append(first, len(chain)))
    length[chain[first]] = {"low": total, "typical": longest, "high": mean}[estimate]
    return without(graph.with_tasks(duration_ns=length), graph.once(_followers))


def _followers(graph: Graph) -> Mask:
    """All kernels of chains but the first, with their calls."""
    first, chain = graph.once(_chains)
    followers = np.zeros(len(graph), np.bool_)
    followers[np.delete(chain, first)] = True
    return removed_by(graph, followers)


def _chains(graph: Graph) -> tuple[Ids, Ids]:
    """Where chains begin among the elementwise kernels of forward and backward; the kernels."""
    fusible = select(graph, kind="elementwise", category="kernel", on_device=True)
    fusible &= graph.tasks.text("stage").mask(*PASS_STAGES)
    fusible &= ~select(graph, operator="*[cC]onv*")  # layout conversions
    fusible &= ~graph.tasks.text("name").where(is_fused)
    rows = np.flatnonzero(fusible)
    if not len(rows):
        return rows, rows
    key = [graph.tasks[name][rows] for name in ("thread", "stage", "step")]
    breaks = np.any([np.diff(column) != 0 for column in key], axis=0) | (np.diff(rows) != 1)
    if graph.trace.metadata.is_of_xla:  # XLA has fused what it can within a program
        breaks |= np.diff(programs(graph.trace.events, graph.tasks["event"][rows])) == 0
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
