"""`gist`: feature maps kept encoded between forward and backward."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert_device_work
from stepscope.roofline.operator_shapes import call_of
from stepscope.whatif.change import Change
from stepscope.whatif.memory_effects.feature_maps import encoded
from stepscope.whatif.parts.kernel_times import memory_rate
from stepscope.whatif.parts.layers import Layers, calls_of, find_layers, neighbor

Ids = NDArray[np.int64]
Job = tuple[str, int, int, float]  # name, task that it follows, row of the layer, passes
_CLASSES = {"relu": "relu", "pool": "pool", "conv": "convolution"}


def gist(graph: Graph, lossy: bool = False, sparsity: float = 0.5) -> Graph:
    """Kernels encode feature maps after forward and decode them before backward.

    A ReLU before a pooling keeps one bit per value (Binarize). The input that a convolution reads
    from a ReLU or a pooling is kept in compressed rows (SSDC). With `lossy`, the inputs of other
    convolutions are kept in 16 bits (DPR).

    Args:
        graph: of training steps on a device.
        lossy: whether maps without a lossless encoding are kept in 16 bits.
        sparsity: the share of zeros in a ReLU's output.

    Raises:
        ChangeError: if there are no such operators, or shapes or memory bandwidth are unknown.

    Source: DAYDREAM sections 5.2 and A.9, algorithm 11; Jain et al., "Gist", ISCA 2018, section 4.
    """
    if not 0 <= sparsity <= 1:
        raise ChangeError(f"gist: expected sparsity from 0 to 1, found {sparsity}")
    if not graph.on_device.any():
        raise ChangeError("gist: these steps have no device work")
    layers, rate = find_layers(graph), memory_rate(graph)
    jobs = _jobs(graph, layers, lossy, sparsity)
    if not jobs:
        raise ChangeError("gist: these steps have no ReLU before a pooling or a convolution")
    size = np.array([_bytes(graph, layers, row) for _, _, row, _ in jobs])
    if rate is None or not size.any():
        raise ChangeError("gist: the input shapes of these operators were not recorded")
    names, places, _, passes = zip(*jobs, strict=True)
    works = np.array(places, np.int64)
    time = np.rint(np.array(passes) * size / rate)
    changed, _ = insert_device_work(
        graph, calls_of(graph, works), works, names, time, category="kernel", kind="elementwise"
    )
    return changed


def _jobs(graph: Graph, layers: Layers, lossy: bool, sparsity: float) -> list[Job]:
    """The encodings and decodings, and their number of passes over the map.

    Compressed rows need a count of the nonzero values (1 pass), a read (1), and a write of the
    values with a byte each for their index (5/4); decoding reads as much and writes all (1). A
    cast to 16 bits reads all and writes half. Backward reads the bits directly.
    """
    kept = 1.25 * (1 - sparsity)
    jobs: list[Job] = []
    for before, row in pairwise(range(len(layers.name))):
        kinds = _class(layers.name[before]), _class(layers.name[row])
        if layers.step[before] != layers.step[row]:
            continue
        if kinds == ("relu", "pool"):
            jobs.append(("binarize", int(layers.last[row]), before, 1 + 1 / 32))
        elif kinds[1] == "convolution" and kinds[0] in ("relu", "pool"):
            jobs += _around(graph, layers, row, "ssdc", 2 + kept, 1 + kept)
        elif kinds[1] == "convolution" and lossy:
            jobs += _around(graph, layers, row, "dpr", 1.5, 1.5)
    return jobs


def _around(
    graph: Graph, layers: Layers, row: int, name: str, encode: float, decode: float
) -> list[Job]:
    """Encode after the layer's forward and decode before its backward, if that is known."""
    jobs: list[Job] = [(f"{name} encode", int(layers.last[row]), row, encode)]
    in_front = int(neighbor(graph, layers.begun[row : row + 1], -1)[0])
    if layers.begun[row] >= 0 and in_front >= 0:
        jobs.append((f"{name} decode", in_front, row, decode))
    return jobs


def _class(name: str) -> str:
    return next((kind for part, kind in _CLASSES.items() if part in name), "")


def _bytes(graph: Graph, layers: Layers, row: int) -> int:
    tensor = call_of(graph.trace, int(layers.operator[row])).tensor(0)
    return tensor.bytes if tensor else 0


CHANGE = Change(
    gist,
    group="Memory",
    basis="passes over the maps at the measured memory bandwidth",
    assumptions=(
        "encoding and decoding move bytes as fast as this step's elementwise kernels",
        "the freed memory is not used for anything",
    ),
    ranked=False,
    one_rank=True,
    memory=encoded,
)
