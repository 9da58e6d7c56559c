"""Layers merged, deleted or resized (metaflow), or fused (reconstruct_batchnorm)."""

import numpy as np

from stepscope.base.arrays import Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, scale, select
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.kernel_times import bound_by_memory
from stepscope.models.whatif.parts.layers import outermost, regions, working
from stepscope.trace.row_order import place_in_group
from stepscope.trace.sets import distinct_rows

_WEIGHTED = ("gemm", "convolution")


def metaflow(graph: Graph, merge: str = "", delete: str = "", resize: str = "", factor: float = 1.0) -> Graph:
    """Layers with the same input are merged, layers are deleted, layers take FACTOR of their time.

    The weight update takes less by the share of the parameters of deleted and resized layers.

    Args:
        merge: globs of layers that read the same input, such as `*.query|*.key|*.value`: inside a
            module the first of them does the work of all and reads the input once: memory-bound
            products take as long as the longest, others as long as all.
        delete: globs of layers to delete.
        resize: globs of layers whose kernels take `factor` of their time.
        factor: see `resize`.

    Source: DAYDREAM sections 5.2 and A.7, algorithm 9; Jia et al., "Optimizing DNN computation with
    relaxed graph substitutions", MLSys 2019.
    """
    if not merge and not delete and not resize:
        raise ChangeError("metaflow: expected merge=, delete= or resize= with globs of layers")
    if merge:
        graph = _merged(graph, _of(graph, merge))
    if resize:
        graph = _updated(scale(graph, (_of(graph, resize) >= 0) & working(graph), factor), resize, factor)
    if delete:
        graph = _updated(remove(graph, (_of(graph, delete) >= 0) & working(graph)), delete, 0.0)
    return graph


def _updated(graph: Graph, globs: str, factor: float) -> Graph:
    update = working(graph) & graph.tasks.text("stage").mask("optimizer")
    return scale(graph, update, max(1 - (1 - factor) * _share_of_parameters(graph, globs), 0.0))


def _share_of_parameters(graph: Graph, globs: str) -> float:
    """The share of all parameters, by their bytes, in layers that match; 0 if it is unknown."""
    modules = graph.trace["modules"]
    size = np.maximum(modules["parameter_bytes"], 0)
    layers = np.unique(np.concatenate([outermost(graph, glob) for glob in globs.split("|")]))
    whole = int(size[modules["parent"] < 0].sum())
    return float(size[layers[layers >= 0]].sum()) / whole if whole else 0.0


def _of(graph: Graph, globs: str) -> Ids:
    """The layer (modules.id) of each task that matches one of the globs, or -1."""
    found = np.full(len(graph), -1, np.int64)
    for glob in globs.split("|"):
        layer = regions(graph, glob)
        if (layer < 0).all():
            raise ChangeError(f"metaflow: no layer with tasks matches {glob!r}")
        found = np.where(layer >= 0, layer, found)
    return found


def _merged(graph: Graph, layer: Ids) -> Graph:
    """Let the kernels of the first of a module's layers do the work of all.

    The n-th product of each layer in forward, and in backward, is merged with the n-th of the
    others. Everything else in the other layers is removed; products without a partner stay.
    """
    parent = np.append(graph.trace["modules"]["parent"], -1)
    works = working(graph) & (layer >= 0)
    rows = np.flatnonzero(works & graph.tasks.text("kind").mask(*_WEIGHTED))
    if len(np.unique(layer[rows])) < 2:
        raise ChangeError("metaflow: merge needs two layers with matrix products or convolutions")
    columns = graph.tasks["step"][rows], graph.tasks["stage"][rows]
    place = place_in_group(distinct_rows(layer[rows], *columns)[1])  # in its layer, in execution order
    _, key = distinct_rows(parent[layer[rows]], *columns, place)
    _, first = np.unique(key, return_index=True)
    length = graph.tasks["duration_ns"].copy()
    whole, longest = np.bincount(key, length[rows]), np.zeros(len(first))
    np.maximum.at(longest, key, length[rows])
    length[rows[first]] = np.where(bound_by_memory(graph)[rows[first]], longest, whole)
    others = works & ~np.isin(layer, np.unique(layer[rows[first]]))
    others[rows] = True
    others[rows[first]] = False
    return remove(graph.with_tasks(duration_ns=length), others)


_RELU = ("aten::relu*", "aten::threshold_backward*", "ReluBackward*", "aten::clamp_min*")
_NORM = ("aten::*batch_norm*", "*BatchNorm*Backward*")


def reconstruct_batchnorm(graph: Graph) -> Graph:
    """Batch normalization takes half its time; activations join the convolutions around them.

    Source: DAYDREAM section 5.1, algorithm 5, after Jung et al., "Restructuring batch
    normalization to accelerate CNN training", 2018.
    """
    kernels = select(graph, category="kernel", on_device=True)
    norm = np.any([select(graph, operator=glob) for glob in _NORM], axis=0) & kernels
    if not norm.any():
        raise ChangeError("reconstruct_batchnorm: there is no batch normalization on a device")
    relu = np.any([select(graph, operator=glob) for glob in _RELU], axis=0) & kernels & ~norm
    return remove(scale(graph, norm, 0.5), relu)


METAFLOW = Change(
    metaflow,
    group="Compute",
    basis="the measured kernels of the layers",
    assumptions=(
        "merged products are as efficient as separate ones; the additions of gradients that they "
        "save balance the concatenation of gradients",
        "operators take as much CPU time as before, except for the launches; work of a module "
        "outside of the layers, such as sums and copies, stays",
    ),
    error=0.12,
    ranked=False,
)

RECONSTRUCT_BATCHNORM = Change(
    reconstruct_batchnorm,
    group="Compute",
    basis="half the measured batch normalization",
    assumptions=("batch normalization moves half the bytes; activations are free in convolutions",),
    error=0.06,
    makeable=False,
    error_source="DAYDREAM 6.4",
)
