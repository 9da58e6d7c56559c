"""`vdnn`: what if the inputs of convolutions were kept in the host's memory until backward?"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.errors import ChangeError
from stepscope.graph import (
    Graph,
    add_links,
    add_thread,
    append,
    insert,
    numbers_after,
    typical_launch,
)
from stepscope.roofline.shapes import call_of
from stepscope.trace.order import ends_run
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text
from stepscope.whatif.layers import Layers, calls_of, find_layers, neighbour

Ids = NDArray[np.int64]


def vdnn(graph: Graph, gb_per_s: float = 15.75) -> Graph:
    """Feature maps that convolutions read are offloaded in forward and prefetched in backward.

    A map is copied out beside the convolution that reads it; the next layer waits for that, since
    it may get the memory. It is copied back when backward of the next convolution begins, and its
    own backward waits for it.

    Args:
        graph: of training steps on a device.
        gb_per_s: rate of copies; by default of 16 lanes of PCIe 3.0 (8 GT/s, 128 of 130 bits).

    Raises:
        ChangeError: if nothing runs on a device, or no convolution with a backward and the shape of
            its input is known.

    Source: DAYDREAM sections 5.2 and A.8, algorithm 10; Rhu et al., "vDNN", MICRO 2016, section
    III, policy "conv".
    """
    if gb_per_s <= 0:
        raise ChangeError(f"vdnn: expected a rate above 0, found {gb_per_s}")
    layers, size = convolutions(graph, "vdnn")
    count, following = len(size), _next_begun(layers)
    calls = calls_of(graph, np.append(layers.first, following))
    graph, new = insert(
        graph, calls, ["cudaMemcpyAsync"] * 2 * count, duration_ns=typical_launch(graph)[0]
    )
    now = numbers_after(len(graph), new)
    graph, copies = _append_copies(graph, layers, size / gb_per_s, size)
    out, back = copies[:count], copies[count:]
    graph = add_links(graph, new, copies, "launch", typical_launch(graph)[1])
    first, last, begun, following = (
        now[tasks] for tasks in (layers.first, layers.last, layers.begun, following)
    )
    for source, target in (
        (neighbour(graph, first, -1), out),
        (out, neighbour(graph, last, 1)),
        (out, back),
        # Backward of the next convolution begins when its own map is back, and what is before it.
        (neighbour(graph, following, -1), back),
        (np.where(following != begun, np.append(back[1:], -1), -1), back),
        (back, begun),
    ):
        known = (source >= 0) & (target >= 0)
        graph = add_links(graph, source[known], target[known], "synchronisation")
    return graph


def _next_begun(layers: Layers) -> Ids:
    """With which task backward of the next convolution of its step begins; the last has its own."""
    after = np.append(layers.begun[1:], layers.begun[-1:])
    same = ~ends_run(layers.step)
    return np.where(same, after, layers.begun)


def _append_copies(
    graph: Graph, layers: Layers, time_ns: NDArray[np.float64], size: Ids
) -> tuple[Graph, Ids]:
    """Copies out, then copies back, on a stream each."""
    device, count = int(graph.threads["device"].max()), len(size)
    graph, down = add_thread(graph, "offload", "device", device, ordered=False)
    graph, up = add_thread(graph, "prefetch", "device", device, ordered=False)
    stage = np.repeat([STAGES.index("forward"), STAGES.index("backward")], count)
    return append(
        graph, np.repeat([down, up], count), ["offload"] * count + ["prefetch"] * count,
        duration_ns=np.rint(np.tile(time_ns, 2)), bytes=np.tile(size, 2),
        step=np.tile(layers.step, 2), stage=Text(stage, STAGES), category="memcpy", kind="memcpy",
    )  # fmt: skip


def convolutions(graph: Graph, change: str) -> tuple[Layers, Ids]:
    """Convolutions on a device that have a backward, and the bytes of what they read.

    Raises:
        ChangeError: if there is none, or shapes were not recorded.
    """
    if not graph.on_device.any():
        raise ChangeError(f"{change}: no work on a device in these steps")
    layers = find_layers(graph)
    conv = np.array(["conv" in name and "backward" not in name for name in layers.name], np.bool_)
    layers = layers.take(conv & (layers.begun >= 0)) if len(conv) else layers
    if not len(layers.operator):
        raise ChangeError(f"{change}: no convolution with a known backward in these steps")
    inputs = [call_of(graph.trace, int(one)).tensor(0) for one in layers.operator]
    size = np.array([tensor.bytes if tensor else 0 for tensor in inputs], np.int64)
    if not size.any():
        raise ChangeError(f"{change}: the shapes of what convolutions read were not recorded")
    return layers.take(size > 0), size[size > 0]
