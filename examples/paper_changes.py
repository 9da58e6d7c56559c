"""DAYDREAM's algorithms 3 to 12 as changes of your own, for one step of one device.

    stepscope whatif FILE paper_distributed:workers=4 --step 6 --changes examples/paper_changes.py

They are as simple as the paper's listings, and a test compares each with the built-in change, which
knows more: it finds gradients, buckets and feature maps in the trace, and the rates of the device.
"""

from itertools import pairwise

import numpy as np

from stepscope.graph import (
    Graph,
    add_links,
    add_thread,
    append,
    insert,
    insert_device_work,
    numbers_after,
    redirect,
    remove,
    scale,
    select,
)

COLLECTIVE = {"category": "communication", "kind": "communication"}
PASSES = "forward", "backward"
KERNEL = {"category": "kernel", "kind": "elementwise"}


def chosen(graph: Graph, **conditions: object) -> np.ndarray:
    """Which tasks `select` finds, without work of an earlier step that still runs."""
    return select(graph, **conditions) & np.isin(graph.tasks["step"], graph.window.steps)


def tasks(graph: Graph, **conditions: object) -> np.ndarray:
    """The ids of these tasks."""
    return np.flatnonzero(chosen(graph, **conditions))


def gradients(graph: Graph) -> np.ndarray:
    """Layers with parameters of their own, the bytes, and the tasks after which gradients are ready.

    A weight that is all that two layers have, as of an embedding and a head, counts for that which is
    ready last. A layer without work is ready with that around it.
    """
    modules = graph.trace["modules"]
    size, parent = np.maximum(modules["parameter_bytes"], 0), modules["parent"]
    inside = np.bincount(parent[parent >= 0], size[parent >= 0], len(size)).astype(int)
    backward = tasks(graph, stage="backward", on_device=True)
    last = dict(zip(graph.tasks["module"][backward].tolist(), backward.tolist(), strict=True))
    for layer, around in enumerate(parent.tolist()):
        last.setdefault(layer, last.get(around, backward[-1]))
    rows = [(layer, own, last[layer]) for layer, own in enumerate(size - inside) if own > 0]
    rows.sort(key=lambda row: row[2])
    twice = [next((row for row in rows if row[1] == more), None) for more in (inside - size)[inside > size]]
    return np.array([row for row in rows if row not in twice]).T


def their_work(graph: Graph, layer: str) -> list[int]:
    """The first and the last task of a layer in forward, and the first in backward."""
    forward, backward = (tasks(graph, stage=stage, module=layer, on_device=True) for stage in PASSES)
    return [forward[0], forward[-1], backward[0]]


def paper_amp(graph: Graph) -> Graph:
    """Algorithm 3: products and convolutions take a third of their time, others but the update half."""
    kernels = chosen(graph, on_device=True) & ~chosen(graph, stage="optimizer")
    products = kernels & (chosen(graph, kind="gemm") | chosen(graph, kind="convolution"))
    return scale(scale(graph, products, 1 / 3), kernels & ~products, 1 / 2)


def paper_fused_adam(graph: Graph) -> Graph:
    """Algorithm 4: the first kernel of the update takes the time of all, and the others go."""
    update = chosen(graph, stage="optimizer", on_device=True)
    first = np.zeros(len(graph), bool)
    first[np.flatnonzero(update)[:1]] = True
    fused = scale(graph, first, graph.tasks["duration_ns"][update].sum() / graph.tasks["duration_ns"][first])
    return remove(fused, update & ~first)


def paper_restructured_batchnorm(graph: Graph) -> Graph:
    """Algorithm 5: ReLUs go, and batch normalization takes half its time, in both passes."""
    for relu in ("aten::relu*", "aten::threshold_backward"):
        graph = remove(graph, chosen(graph, operator=relu, on_device=True))
    forward = chosen(graph, operator="aten::*batch_norm", on_device=True)
    backward = chosen(graph, operator="*BatchNormBackward*", on_device=True)
    return scale(graph, forward | backward, 1 / 2)


def paper_distributed(graph: Graph, workers: int = 2, gbps: float = 10.0, bucket_mb: float = 25.0) -> Graph:
    """Algorithm 6: an all-reduce for each bucket of gradients, between backward and the update."""
    _, size, ready = gradients(graph)
    _, first = np.unique((np.cumsum(size) - size) // (bucket_mb * 1e6), return_index=True)
    size, ready = np.add.reduceat(size, first), np.maximum.reduceat(ready, first)
    time = 2 * (workers - 1) / workers * size * 8 / gbps
    update = tasks(graph, stage="optimizer", on_device=True)[0]
    graph, channel = add_thread(graph, "all-reduce", "communication", device=0)
    names = ["all-reduce"] * len(size)
    graph, new = append(graph, channel, names, duration_ns=time, bytes=size, **COLLECTIVE)
    graph = add_links(graph, ready, new, "communication")
    return add_links(graph, new, update, "communication")


def paper_p3(graph: Graph, gbps: float = 10.0, slice_mb: float = 1.0) -> Graph:
    """Algorithm 7: two workers push and pull slices, those of the first layers first."""
    most = slice_mb * 1e6
    slices = [
        (layer, min(most, left), ready)
        for layer, size, ready in gradients(graph).T
        for left in np.arange(size, 0, -most)
    ]
    layer, size, ready = np.array(slices).T
    graph, send = add_thread(graph, "send", "communication", device=0, ordered=False)
    graph, receive = add_thread(graph, "receive", "communication", device=0, ordered=False)
    own = np.arange(len(layer)) % 2 == 0  # slices that this worker serves: it receives the push
    threads = np.concatenate([np.where(own, receive, send), np.where(own, send, receive)])
    names = [f"{way} {number:.0f}" for way in ("push", "pull") for number in layer]
    time, first = np.tile(size * 8 / gbps, 2), -np.tile(layer, 2)
    graph, new = append(graph, threads, names, duration_ns=time, priority=first, **COLLECTIVE)
    push, pull = np.split(new, 2)
    graph = add_links(graph, ready.astype(int), push, "communication")
    return add_links(graph, push, pull, "communication")


def paper_blueconnect(graph: Graph) -> Graph:
    """Algorithm 8: reduce-scatters up two levels of two workers, and all-gathers down."""
    gbps = [64.0, 8.0 / 2]  # two workers of a node share its link
    reduces = np.flatnonzero(select(graph, name="all-reduce*"))
    size, levels = graph.tasks["bytes"][reduces], [0, 1, 1, 0]
    channels = []
    for level in range(2):
        graph, channel = add_thread(graph, f"level {level}", "communication", 0, ordered=False)
        channels.append(channel)
    names = [name for name in ("scatter", "scatter", "gather", "gather") for _ in reduces]
    time = np.concatenate([size / 2**level / 2 * 8 / gbps[level] for level in levels])
    threads = np.repeat([channels[level] for level in levels], len(reduces))
    graph = scale(graph, select(graph, name="all-reduce*"), 0)  # it stays as the moment of arrival
    graph, new = append(graph, threads, names, duration_ns=time, **COLLECTIVE)
    chain = [reduces, *np.split(new, 4)]
    for before, after in pairwise(chain):
        graph = add_links(graph, before, after, "communication")
    return redirect(graph, reduces, chain[-1])


def paper_metaflow(graph: Graph, delete: str = "", resize: str = "", factor: float = 1.0) -> Graph:
    """Algorithm 9: the kernels of a layer go, or take `factor` of their time."""
    if resize:
        graph = scale(graph, chosen(graph, module=resize, on_device=True), factor)
    return remove(graph, chosen(graph, module=delete, on_device=True)) if delete else graph


def paper_vdnn(graph: Graph, layer: str, mb: float, gb_per_s: float = 15.75) -> Graph:
    """Algorithm 10: a convolution's map is copied out while it runs, and back before its backward."""
    first, last, backward = their_work(graph, layer)
    graph, stream = add_thread(graph, "copies", "device", device=0)
    time = mb * 1e6 / gb_per_s
    graph, (out, back) = append(graph, stream, ["offload", "prefetch"], duration_ns=time, category="memcpy")
    graph = add_links(graph, first - 1, out, "synchronization")  # its input is there
    graph = add_links(graph, out, last + 1, "synchronization")  # which may get the memory
    graph = add_links(graph, backward - 1, back, "synchronization")
    return add_links(graph, back, backward, "synchronization")


def paper_gist(graph: Graph, layer: str, mb: float, gb_per_s: float = 900.0) -> Graph:
    """Algorithm 11: a convolution's map is encoded after its forward, decoded before its backward."""
    _, last, backward = their_work(graph, layer)
    works, launches = [last, backward - 1], graph.links.text("kind").mask("launch")
    calls = [graph.links["source"][launches & (graph.links["target"] == work)][0] for work in works]
    time = np.array([2.625, 1.625]) * mb * 1e6 / gb_per_s  # passes over the map: rows, half of it zeros
    return insert_device_work(graph, calls, works, ["encode", "decode"], time, **KERNEL)[0]


def paper_dgc(graph: Graph, ratio: float = 0.01, gb_per_s: float = 900.0) -> Graph:
    """Algorithm 12: gradients are compressed before they are sent by two workers, and unpacked after."""
    reduces = np.flatnonzero(select(graph, name="all-reduce*"))
    size, names = graph.tasks["bytes"][reduces], np.array(["compress", "decompress"])
    graph = scale(graph, select(graph, name="all-reduce*"), 2 * ratio)  # a value and its index
    before = {"duration_ns": 12 * size / gb_per_s, **KERNEL}
    graph, packed = insert(graph, reduces, names[:1].repeat(len(size)).tolist(), in_front=True, **before)
    reduces = numbers_after(len(graph), packed)[reduces]
    after = {"duration_ns": size / gb_per_s, **KERNEL}
    graph, unpacked = insert(graph, reduces, names[1:].repeat(len(size)).tolist(), **after)
    return redirect(graph, numbers_after(len(graph), unpacked)[reduces], unpacked)


CHANGES = [
    paper_amp,
    paper_fused_adam,
    paper_restructured_batchnorm,
    paper_distributed,
    paper_p3,
    paper_blueconnect,
    paper_metaflow,
    paper_vdnn,
    paper_gist,
    paper_dgc,
]
