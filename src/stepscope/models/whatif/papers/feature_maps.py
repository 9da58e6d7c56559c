"""Feature maps that are in host memory (vdnn), or encoded (gist), between forward and backward."""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Floats, Ids
from stepscope.errors import ChangeError
from stepscope.graph import (
    Graph,
    add_links,
    add_thread,
    append,
    insert,
    insert_device_work,
    numbers_after,
    typical_launch,
)
from stepscope.models.memory.recorded_memory import AllocationRecord, RecordedMemory
from stepscope.models.whatif.change import Change
from stepscope.models.whatif.parts.kernel_times import memory_rate, rates_of_graph
from stepscope.models.whatif.parts.layers import Layers, calls_of, find_layers, input_bytes, neighbor
from stepscope.trace.row_order import ends_run
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text

_PCIE_3 = 15.75  # GB/s of 16 lanes: 8 GT/s, 128 of 130 bits; each generation has twice the rate
_LEAST_COPY = 1 << 22  # bytes; chosen: of a shorter copy much is its start


def vdnn(graph: Graph, gb_per_s: float = _PCIE_3) -> Graph:
    """The inputs of convolutions are offloaded in forward and prefetched in backward.

    A feature map is copied out while the convolution reads it; the next layer waits for the copy,
    since it may get the memory. It is copied back when backward of the next convolution begins, and
    its own backward waits for it.

    Args:
        gb_per_s: rate of copies; by default that of recorded copies of pinned memory to the device,
            else of 16 lanes of the PCIe that the device has; 15.75 is PCIe 3.0.

    Source: DAYDREAM sections 5.2 and A.8, algorithm 10; Rhu et al., "vDNN", MICRO 2016, section
    III, policy "conv".
    """
    if gb_per_s <= 0:
        raise ChangeError(f"vdnn: expected gb_per_s above 0, found {gb_per_s}")
    layers, size = convolutions(graph, "vdnn")
    # The first backward task of the next convolution of the step; the last has its own.
    after = np.append(layers.begun[1:], layers.begun[-1:])
    count, following = len(size), np.where(ends_run(layers.step), layers.begun, after)
    calls = calls_of(graph, np.append(layers.first, following))
    graph, new = insert(graph, calls, ["cudaMemcpyAsync"] * 2 * count, duration_ns=typical_launch(graph)[0])
    now = numbers_after(len(graph), new)
    graph, copies = _append_copies(graph, layers, size / gb_per_s, size)
    out, back = copies[:count], copies[count:]
    graph = add_links(graph, new, copies, "launch", typical_launch(graph)[1])
    first, last, begun, following = (
        now[tasks] for tasks in (layers.first, layers.last, layers.begun, following)
    )
    for source, target in (
        (neighbor(graph, first, -1), out),
        (out, neighbor(graph, last, 1)),
        (out, back),
        # Backward of the next convolution begins when its own map is back.
        (neighbor(graph, following, -1), back),
        (np.where(following != begun, np.append(back[1:], -1), -1), back),
        (back, begun),
    ):
        known = (source >= 0) & (target >= 0)
        graph = add_links(graph, source[known], target[known], "synchronization")
    return graph


def _copy_rate(graph: Graph) -> tuple[float, str]:
    """How many GB/s copies between host and device move, and whose rate it is."""
    tasks, device = graph.tasks, rates_of_graph(graph)
    pinned = tasks.text("name").where(lambda name: "HtoD (Pinned" in name)
    rows = np.flatnonzero(pinned & (tasks["bytes"] >= _LEAST_COPY) & (tasks["duration_ns"] > 0))
    if len(rows):
        rate = float(tasks["bytes"][rows].sum() / tasks["duration_ns"][rows].sum())
        return round(rate, 2), f"recorded copies of pinned memory to the device ({len(rows)})"
    if device is None:
        return _PCIE_3, "16 lanes of PCIe 3.0, as neither such copies nor the device's data sheet are known"
    rate = _PCIE_3 * 2 ** (device["pcie"] - 3)
    return rate, f"16 lanes of PCIe {device['pcie']}.0 ({device['name']}), as no such copies were recorded"


def _append_copies(graph: Graph, layers: Layers, time_ns: Floats, size: Ids) -> tuple[Graph, Ids]:
    """Append the copies out, then the copies back, on a stream each."""
    device, count = int(graph.threads["device"].max()), len(size)
    graph, down = add_thread(graph, "offload", "device", device, ordered=False)
    graph, up = add_thread(graph, "prefetch", "device", device, ordered=False)
    stage = np.repeat([STAGES.index("forward"), STAGES.index("backward")], count)
    return append(
        graph,
        np.repeat([down, up], count),
        ["offload"] * count + ["prefetch"] * count,
        duration_ns=np.rint(np.tile(time_ns, 2)),
        bytes=np.tile(size, 2),
        step=np.tile(layers.step, 2),
        stage=Text(stage, STAGES),
        category="memcpy",
        kind="memcpy",
    )


def convolutions(graph: Graph, change: str) -> tuple[Layers, Ids]:
    """Convolutions on a device with a backward, and the bytes of their inputs."""
    if not graph.on_device.any():
        raise ChangeError(f"{change}: these steps have no device work")
    layers = find_layers(graph)
    conv = np.array(["conv" in name and "backward" not in name for name in layers.name], np.bool_)
    layers = layers.take(conv & (layers.begun >= 0)) if len(conv) else layers
    if not len(layers.operator):
        raise ChangeError(f"{change}: these steps have no convolution with a known backward")
    size = np.array([input_bytes(graph, event) for event in layers.operator.tolist()], np.int64)
    if not size.any():
        raise ChangeError(f"{change}: the input shapes of convolutions were not recorded")
    return layers.take(size > 0), size[size > 0]


Job = tuple[str, int, int, float]  # name, task that it follows, row of the layer, passes
_MAKERS = {"relu": "relu", "pool": "pool", "conv": "convolution"}
_BITS, _INDEX = 1 / 32, 1.25  # one bit for 32; a byte of index for each value that is kept


class Encoding(NamedTuple):
    """How a feature map is kept: passes over it to encode and decode, and the share of its size.

    Compressed rows need a count of the nonzero values (1 pass), a read (1), and a write of the
    values with a byte each for their index (5/4); decoding reads as much and writes all (1). A
    cast to 16 bits reads all and writes half. Backward reads single bits directly.
    """

    name: str
    encode: float
    decode: float
    share: float

    @classmethod
    def of(cls, maker: str, reader: str, lossy: bool, sparsity: float) -> "Encoding | None":
        """The encoding of what an operator makes and the next one reads, by their kinds."""
        kept = _INDEX * (1 - sparsity)
        if (maker, reader) == ("relu", "pool"):
            return cls("binarize", 1 + _BITS, 0.0, _BITS)
        if reader == "convolution" and maker in ("relu", "pool"):
            return cls("ssdc", 2 + kept, 1 + kept, min(1.0, kept))
        return cls("dpr", 1.5, 1.5, 0.5) if reader == "convolution" and lossy else None


def gist(graph: Graph, lossy: bool = False, sparsity: float = 0.5) -> Graph:
    """Kernels encode feature maps after forward and decode them before backward.

    A ReLU before a pooling keeps one bit per value (Binarize). The input that a convolution reads
    from a ReLU or a pooling is kept in compressed rows (SSDC). With `lossy`, the inputs of other
    convolutions are kept in 16 bits (DPR).

    Args:
        lossy: whether maps without a lossless encoding are kept in 16 bits.
        sparsity: the share of zeros in a ReLU's output.

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
    size = np.array([input_bytes(graph, int(layers.operator[row])) for _, _, row, _ in jobs])
    if rate is None or not size.any():
        raise ChangeError("gist: the input shapes of these operators were not recorded")
    names, places, _, passes = zip(*jobs, strict=True)
    works = np.array(places, np.int64)
    time = np.rint(np.array(passes) * size / rate)
    return insert_device_work(
        graph, calls_of(graph, works), works, names, time, category="kernel", kind="elementwise"
    )[0]


def _jobs(graph: Graph, layers: Layers, lossy: bool, sparsity: float) -> list[Job]:
    """Encodings after a layer's forward, and decodings before its backward, if that is known."""
    jobs: list[Job] = []
    in_front = np.where(layers.begun >= 0, neighbor(graph, layers.begun, -1), -1).tolist()
    for before, row in pairwise(range(len(layers.name))):
        encoding = Encoding.of(_class(layers.name[before]), _class(layers.name[row]), lossy, sparsity)
        if encoding is None or layers.step[before] != layers.step[row]:
            continue
        if not encoding.decode:  # the map is what the layer before made
            jobs.append((encoding.name, int(layers.last[row]), before, encoding.encode))
            continue
        jobs.append((f"{encoding.name} encode", int(layers.last[row]), row, encoding.encode))
        if in_front[row] >= 0:
            jobs.append((f"{encoding.name} decode", in_front[row], row, encoding.decode))
    return jobs


def _class(name: str | None) -> str:
    return next((kind for part, kind in _MAKERS.items() if part in (name or "")), "")


def offloaded(memory: RecordedMemory) -> RecordedMemory:
    """The memory if inputs of convolutions are in host memory between forward and backward.

    Source: Rhu et al., "vDNN", MICRO 2016.
    """
    maps = _kept_maps(memory.recording)
    gone = {allocation: 0.0 for allocation, (_, reader) in maps.items() if reader == "convolution"}
    return _between(memory, gone, "vdnn")


def encoded(memory: RecordedMemory, lossy: bool = False, sparsity: float = 0.5) -> RecordedMemory:
    """The memory if feature maps are encoded between forward and backward.

    Source: Jain et al., "Gist", ISCA 2018, section 4.
    """
    maps = _kept_maps(memory.recording).items()
    encodings = {allocation: Encoding.of(*kinds, lossy, sparsity) for allocation, kinds in maps}
    share = {allocation: encoding.share for allocation, encoding in encodings.items() if encoding}
    return _between(memory, share, "gist")


def _kept_maps(recording: AllocationRecord) -> dict[int, tuple[str, str]]:
    """Allocations kept for backward, with the kinds of operator that made and that keep them."""
    uses, names = recording.uses, recording.trace.events.text("name")
    rows = np.flatnonzero(uses.saver >= 0)
    maps: dict[int, tuple[str, str]] = {}
    for allocation, saver in zip(uses.allocation[rows].tolist(), uses.saver[rows].tolist(), strict=True):
        maker, root = int(recording.root[allocation]), int(recording.attribution.root[saver])
        if maker >= 0 and maker != root and (reader := _class(names[root])):
            maps[allocation] = (_class(names[maker]), reader)
    return maps


def _between(memory: RecordedMemory, share: Mapping[int, float], change: str) -> RecordedMemory:
    """Each map has a share of its size from its last read in forward to its first in backward."""
    if not share:
        raise ChangeError(f"{change}: no feature map of this kind is kept for backward")
    chosen = np.array([*share], np.int64)
    life = memory.lifetimes
    factor = np.ones(len(memory.recording) + 1)
    factor[chosen] = [*share.values()]
    last, first = memory.recording.last_read, _first_read_in_backward(memory.recording)
    rows = np.flatnonzero((factor < 1)[life.recorded] & (first > last)[life.recorded])
    whole = life.take(rows)
    low, high = last[whole.recorded], first[whole.recorded]
    small = np.rint(whole.bytes * factor[whole.recorded]).astype(np.int64)
    end = life.end.copy()
    end[rows] = np.minimum(whole.end, low)
    middle = whole.changed(bytes=small, start=low, end=np.minimum(whole.end, high))
    return memory.with_lifetimes(
        life.changed(end=end).plus(middle).plus(whole.changed(start=np.minimum(high, whole.end)))
    )


def _first_read_in_backward(recording: AllocationRecord) -> Floats:
    """The beginning of the first backward operator that uses each allocation; inf without."""
    uses, first = recording.uses, np.full(len(recording) + 1, np.inf)
    np.minimum.at(first, uses.allocation[uses.backward], recording.starts[uses.event[uses.backward]])
    return first


VDNN = Change(
    vdnn,
    group="Memory",
    basis="the bytes of the maps at a rate of copies",
    assumptions=(
        "copies slow no kernel down and get memory at once",
        "the freed memory is not used for anything",
    ),
    evidence=lambda graph: ("copies are as fast as {1}: {0:g} GB/s by default".format(*_copy_rate(graph)),),
    choose=lambda graph: {"gb_per_s": _copy_rate(graph)[0]},
    ranked=False,
    one_rank=True,
    memory=offloaded,
)

GIST = Change(
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
