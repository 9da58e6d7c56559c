"""`gist`: what if feature maps were kept encoded between forward and backward?"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import Graph, insert_device_work
from stepscope.roofline.shapes import call_of
from stepscope.whatif.layers import Layers, calls_of, find_layers, neighbour
from stepscope.whatif.roofline import memory_rate

Ids = NDArray[np.int64]
Job = tuple[str, int, int, float]  # name, task behind which it goes, row of the layer, passes
_CLASSES = {"relu": "relu", "pool": "pool", "conv": "convolution"}


def gist(graph: Graph, lossy: bool = False, sparsity: float = 0.5) -> Graph:
    """Encoding and decoding kernels are added: a bit a value, compressed rows, or 16 bits.

    A ReLU before a pooling keeps one bit a value (Binarize). What a convolution reads from a ReLU
    or a pooling is kept in compressed rows (SSDC), decoded before its backward. With `lossy`, what
    other convolutions read is kept in 16 bits (DPR).

    Args:
        graph: of training steps on a device.
        lossy: whether maps that cannot be encoded without loss are kept in 16 bits.
        sparsity: which part of what a ReLU gives is zero.

    Raises:
        ChangeError: if no such operators, their shapes or the speed of memory are known.

    Source: DAYDREAM sections 5.2 and A.9, algorithm 11; Jain et al., "Gist", ISCA 2018, section 4.
    """
    if not 0 <= sparsity <= 1:
        raise ChangeError(f"gist: expected a sparsity from 0 to 1, found {sparsity}")
    if not graph.on_device.any():
        raise ChangeError("gist: no work on a device in these steps")
    layers, rate = find_layers(graph), memory_rate(graph)
    jobs = _jobs(graph, layers, lossy, sparsity)
    if not jobs:
        raise ChangeError("gist: no ReLU before a pooling or a convolution in these steps")
    size = np.array([_bytes(graph, layers, row) for _, _, row, _ in jobs])
    if rate is None or not size.any():
        raise ChangeError("gist: the shapes of what these operators read were not recorded")
    names, places, _, passes = zip(*jobs, strict=True)
    works = np.array(places, np.int64)
    time = np.rint(np.array(passes) * size / rate)
    changed, _ = insert_device_work(
        graph, calls_of(graph, works), works, names, time, category="kernel", kind="elementwise"
    )
    return changed


def _jobs(graph: Graph, layers: Layers, lossy: bool, sparsity: float) -> list[Job]:
    """What is encoded and decoded, and in how many passes over the map.

    Compressed rows take a count of what is not zero (1 pass), a read (1), and a write of the values
    with a byte for each one's place (5/4); to decode, as much is read and all is written (1). A
    cast to 16 bits reads all and writes half. The bit is read by backward itself.
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
    """Encode behind the layer's forward, decode in front of its backward, where that is known."""
    jobs: list[Job] = [(f"{name} encode", int(layers.last[row]), row, encode)]
    in_front = int(neighbour(graph, layers.begun[row : row + 1], -1)[0])
    if layers.begun[row] >= 0 and in_front >= 0:
        jobs.append((f"{name} decode", in_front, row, decode))
    return jobs


def _class(name: str) -> str:
    return next((kind for part, kind in _CLASSES.items() if part in name), "")


def _bytes(graph: Graph, layers: Layers, row: int) -> int:
    tensor = call_of(graph.trace, int(layers.operator[row])).tensor(0)
    return tensor.bytes if tensor else 0
