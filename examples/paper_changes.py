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


def last_in_backward(graph: Graph) -> dict[int, int]:
    """By layer, the task after which its gradients are ready."""
    backward = tasks(graph, stage="backward", on_device=True).tolist()
    return {int(graph.tasks["module"][task]): task for task in backward if graph.tasks["module"][task] >= 0}


def paper_amp(graph: Graph) -> Graph:
    """Algorithm 3: products and convolutions take a third of their time, other kernels half."""
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
    """Algorithm 5: ReLUs go, and batch normalization takes half its time."""
    graph = remove(graph, chosen(graph, operator="aten::relu*", on_device=True))
    return scale(graph, chosen(graph, operator="aten::*batch_norm*", on_device=True), 1 / 2)


def paper_distributed(graph: Graph, workers: int = 2, gbps: float = 10.0) -> Graph:
    """Algorithm 6: an all-reduce for each layer, between its backward and the weight update."""
    size, last = graph.trace["modules"]["parameter_bytes"], last_in_backward(graph)
    layers, ready = np.array(list(last)), np.array(list(last.values()))
    time = 2 * (workers - 1) / workers * size[layers] * 8 / gbps
    update = tasks(graph, stage="optimizer", on_device=True)[0]
    graph, channel = add_thread(graph, "all-reduce", "communication", device=0)
    names = ["all-reduce"] * len(layers)
    graph, new = append(graph, channel, names, duration_ns=time, bytes=size[layers], **COLLECTIVE)
    graph = add_links(graph, ready, new, "communication")
    return add_links(graph, new, update, "communication")


def paper_p3(graph: Graph, gbps: float = 10.0, slice_mb: float = 1.0) -> Graph:
    """Algorithm 7: two workers push and pull slices, those of the first layers first."""
    size, last = graph.trace["modules"]["parameter_bytes"], last_in_backward(graph)
    slices = [
        (layer, ready) for layer, ready in last.items() for _ in range(int(size[layer] / slice_mb / 1e6))
    ]
    layer, ready = np.array(slices).T
    graph, send = add_thread(graph, "send", "communication", device=0, ordered=False)
    graph, receive = add_thread(graph, "receive", "communication", device=0, ordered=False)
    own = np.arange(len(layer)) % 2 == 0  # slices that this worker serves: it receives the push
    threads = np.concatenate([np.where(own, receive, send), np.where(own, send, receive)])
    names = [f"{way} {number}" for way in ("push", "pull") for number in layer]
    time, first = slice_mb * 1e6 * 8 / gbps, -np.tile(layer, 2)
    graph, new = append(graph, threads, names, duration_ns=time, priority=first, **COLLECTIVE)
    push, pull = np.split(new, 2)
    graph = add_links(graph, ready, push, "communication")
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
    forward, backward = (tasks(graph, stage=stage, module=layer, on_device=True) for stage in PASSES)
    graph, stream = add_thread(graph, "copies", "device", device=0)
    time = mb * 1e6 / gb_per_s
    graph, (out, back) = append(graph, stream, ["offload", "prefetch"], duration_ns=time, category="memcpy")
    graph = add_links(graph, forward - 1, out, "synchronization")  # its input is there
    graph = add_links(graph, out, forward + 1, "synchronization")  # which may get the memory
    graph = add_links(graph, backward - 1, back, "synchronization")
    return add_links(graph, back, backward, "synchronization")


def paper_gist(graph: Graph, layer: str, mb: float, gb_per_s: float = 900.0) -> Graph:
    """Algorithm 11: a convolution's map is encoded after its forward, decoded before its backward."""
    forward, backward = (tasks(graph, stage=stage, module=layer, on_device=True) for stage in PASSES)
    works = np.concatenate([forward, backward - 1])
    calls = [graph.links["source"][graph.links["target"] == work][0] for work in works]
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
