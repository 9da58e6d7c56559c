"""`metaflow`: what if layers were merged, removed or made larger or smaller?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, scale
from stepscope.trace.order import inverse
from stepscope.whatif.layers import regions, working
from stepscope.whatif.roofline import bound_by_memory

Ids = NDArray[np.int64]
Mask = NDArray[np.bool_]
_WEIGHTED = ("gemm", "convolution")


def metaflow(
    graph: Graph, merge: str = "", delete: str = "", resize: str = "", factor: float = 1.0
) -> Graph:
    """Layers are merged into one, deleted or resized, as a graph substitution would.

    Args:
        graph: any graph whose tasks are known to belong to modules.
        merge: globs of layers that read the same input, such as `*.query|*.key|*.value`: of those
            inside the same module the first does the work of all. The input is then read once:
            products bound by memory take as long as the longest, others as long as all.
        delete: globs of layers that are no longer there.
        resize: globs of layers whose kernels take `factor` of their time.
        factor: see `resize`.

    Raises:
        ChangeError: if no layer matches, or nothing is asked for.

    Source: DAYDREAM sections 5.2 and A.7, algorithm 9; Jia et al., "Optimizing DNN computation with
    relaxed graph substitutions", MLSys 2019.
    """
    if not merge and not delete and not resize:
        raise ChangeError("metaflow: expected merge=, delete= or resize= with globs of layers")
    if merge:
        graph = _merged(graph, _of(graph, merge))
    if resize:
        graph = scale(graph, (_of(graph, resize) >= 0) & working(graph), factor)
    return remove(graph, (_of(graph, delete) >= 0) & working(graph)) if delete else graph


def _of(graph: Graph, globs: str) -> Ids:
    """For each task the layer (modules.id) that matches one of the globs, or -1."""
    found = np.full(len(graph), -1, np.int64)
    for glob in globs.split("|"):
        layer = regions(graph, glob)
        if (layer < 0).all():
            raise ChangeError(f"metaflow: no task belongs to a layer that matches {glob!r}")
        found = np.where(layer >= 0, layer, found)
    return found


def _merged(graph: Graph, layer: Ids) -> Graph:
    """Of the layers inside the same module, the first one's kernels do the work of all.

    The n-th product of each layer in forward, and in backward, is merged with the n-th of the
    others. Everything else of the other layers goes; products that have no partner stay.
    """
    parent = np.append(graph.trace["modules"]["parent"], -1)
    works = working(graph) & (layer >= 0)
    products = works & graph.tasks.text("kind").mask(*_WEIGHTED)
    rows = np.flatnonzero(products)
    if len(np.unique(layer[rows])) < 2:
        raise ChangeError("metaflow: merge needs two layers with products or convolutions")
    group = np.stack([parent[layer[rows]], graph.tasks["step"][rows], graph.tasks["stage"][rows],
                      _turn(graph, rows, layer[rows])])  # fmt: skip
    _, key = np.unique(group, axis=1, return_inverse=True)
    key = key.ravel()
    _, first = np.unique(key, return_index=True)
    length = graph.tasks["duration_ns"].copy()
    whole, longest = np.bincount(key, length[rows]), np.zeros(len(first))
    np.maximum.at(longest, key, length[rows])
    length[rows[first]] = np.where(bound_by_memory(graph)[rows[first]], longest, whole)
    stays = np.unique(layer[rows[first]])
    others = works & ~np.isin(layer, stays)
    others[rows] = True
    others[rows[first]] = False
    return remove(graph.with_tasks(duration_ns=length), others)


def _turn(graph: Graph, rows: Ids, layer: Ids) -> Ids:
    """Which product of its layer, step and stage each is, in the order in which they run."""
    key = np.stack([layer, graph.tasks["step"][rows], graph.tasks["stage"][rows]])
    _, code = np.unique(key, axis=1, return_inverse=True)
    code = code.ravel()
    order = np.argsort(code, kind="stable")
    first = np.searchsorted(code[order], code)
    return inverse(order) - first
