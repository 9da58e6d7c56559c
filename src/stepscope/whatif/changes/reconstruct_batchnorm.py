"""`reconstruct_batchnorm`: batch normalization fused into its neighbors."""

from __future__ import annotations

import numpy as np

from stepscope.errors import ChangeError
from stepscope.graph import Graph, remove, scale, select
from stepscope.whatif.change import Change

_RELU = ("aten::relu*", "aten::threshold_backward*", "ReluBackward*", "aten::clamp_min*")
_NORM = ("aten::*batch_norm*", "*BatchNorm*Backward*")


def reconstruct_batchnorm(graph: Graph) -> Graph:
    """Batch normalization takes half its time; activations join the convolutions around them.

    Raises:
        ChangeError: if there is no batch normalization.

    Source: DAYDREAM section 5.1, algorithm 5, after Jung et al., "Restructuring batch
    normalization to accelerate CNN training", 2018.
    """
    kernels = select(graph, category="kernel", on_device=True)
    norm = np.any([select(graph, operator=glob) for glob in _NORM], axis=0) & kernels
    if not norm.any():
        raise ChangeError("reconstruct_batchnorm: there is no batch normalization on a device")
    relu = np.any([select(graph, operator=glob) for glob in _RELU], axis=0) & kernels & ~norm
    return remove(scale(graph, norm, 0.5), relu)


CHANGE = Change(
    reconstruct_batchnorm,
    group="Compute",
    basis="half the measured batch normalization",
    assumptions=("batch normalization moves half the bytes; activations are free in convolutions",),
    error=0.06,
    error_source="DAYDREAM 6.4",
)
