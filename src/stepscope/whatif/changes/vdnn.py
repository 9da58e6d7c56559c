"""`vdnn`: inputs of convolutions kept in host memory until backward."""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Floats, Ids
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
from stepscope.roofline.operator_shapes import call_of
from stepscope.trace.row_order import ends_run
from stepscope.trace.schema import STAGES
from stepscope.trace.table import Text
from stepscope.whatif.change import Change
from stepscope.whatif.memory_effects.feature_maps import offloaded
from stepscope.whatif.parts.layers import Layers, calls_of, find_layers, neighbor


def vdnn(graph: Graph, gb_per_s: float = 15.75) -> Graph:
    """The inputs of convolutions are offloaded in forward and prefetched in backward.

    A feature map is copied out while the convolution reads it; the next layer waits for the copy,
    since it may get the memory. It is copied back when backward of the next convolution begins, and
    its own backward waits for it.

    Args:
        graph: of training steps on a device.
        gb_per_s: rate of copies; by default 16 lanes of PCIe 3.0 (8 GT/s, 128 of 130 bits).

    Raises:
        ChangeError: if there is no device work, or no convolution with a known backward and input
            shape.

    Source: DAYDREAM sections 5.2 and A.8, algorithm 10; Rhu et al., "vDNN", MICRO 2016, section
    III, policy "conv".
    """
    if gb_per_s <= 0:
        raise ChangeError(f"vdnn: expected gb_per_s above 0, found {gb_per_s}")
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


def _next_begun(layers: Layers) -> Ids:
    """The first backward task of the next convolution of the step; the last has its own."""
    after = np.append(layers.begun[1:], layers.begun[-1:])
    same = ~ends_run(layers.step)
    return np.where(same, after, layers.begun)


def _append_copies(graph: Graph, layers: Layers, time_ns: Floats, size: Ids) -> tuple[Graph, Ids]:
    """Append the copies out, then the copies back, on a stream each."""
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
    """Convolutions on a device with a backward, and the bytes of their inputs.

    Raises:
        ChangeError: if there are none, or shapes were not recorded.
    """
    if not graph.on_device.any():
        raise ChangeError(f"{change}: these steps have no device work")
    layers = find_layers(graph)
    conv = np.array(["conv" in name and "backward" not in name for name in layers.name], np.bool_)
    layers = layers.take(conv & (layers.begun >= 0)) if len(conv) else layers
    if not len(layers.operator):
        raise ChangeError(f"{change}: these steps have no convolution with a known backward")
    inputs = [call_of(graph.trace, int(one)).tensor(0) for one in layers.operator]
    size = np.array([tensor.bytes if tensor else 0 for tensor in inputs], np.int64)
    if not size.any():
        raise ChangeError(f"{change}: the input shapes of convolutions were not recorded")
    return layers.take(size > 0), size[size > 0]


CHANGE = Change(
    vdnn,
    group="Memory",
    basis="the bytes of the maps at the copy rate that you give",
    assumptions=(
        "copies slow no kernel down and get memory at once",
        "the freed memory is not used for anything",
    ),
    ranked=False,
    one_rank=True,
    memory=offloaded,
)
