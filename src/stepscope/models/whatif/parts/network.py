"""Collectives: a cost model of the network, and the collectives of a graph.

The cost model has rings, trees, and gloo's algorithms. Collectives are found, refused, replaced by
phases, and added, also such as block the CPU thread that calls them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, append, insert, numbers_after, redirect, select
from stepscope.models.ranks.calls import named_calls
from stepscope.models.ranks.collectives import GroupKey, fixed_ns
from stepscope.trace.sets import Interner, mask_of

ALGORITHMS = ("ring", "tree")


@dataclass(frozen=True)
class Network:
    """Workers on nodes, and the links between them.

    Attributes:
        workers: number of workers.
        bandwidth_gbps: of a link between nodes, Gbit/s in each direction.
        latency_us: of a message between nodes, us.
        per_node: number of workers that share a node.
        intra_gbps: of a link within a node, Gbit/s.
        intra_latency_us: of a message within a node, us.
        algorithm: of all-reduces, `ring` or `tree`; no parameter of its own.
        gloo: whether collectives are gloo's, as on CPUs; no parameter of its own.

    Source: the terms are those of NCCL's cost model (NVIDIA/nccl, src/graph/tuning.cc): time is
    latency by the number of steps, and bytes by the bandwidth of the slowest link.
    """

    workers: int
    bandwidth_gbps: float = 10.0
    latency_us: float = 20.0
    per_node: int = 1
    intra_gbps: float = 100.0
    intra_latency_us: float = 5.0
    algorithm: str = field(default="ring", metadata={"parameter": False})
    gloo: bool = field(default=False, metadata={"parameter": False})

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return self.workers // self.per_node

    def checked(self, change: str) -> "Network":
        """The network itself, if it is valid."""
        if self.workers < 2 or self.per_node < 1 or self.workers % self.per_node:
            raise ChangeError(
                f"{change}: expected at least 2 workers, a multiple of per_node; "
                f"found {self.workers} and {self.per_node}"
            )
        speeds = self.bandwidth_gbps, self.intra_gbps
        delays = self.latency_us, self.intra_latency_us
        if min(speeds) <= 0 or min(delays) < 0:
            raise ChangeError(
                f"{change}: expected bandwidths above 0 and no negative latency; "
                f"found {speeds} Gbit/s and {delays} us"
            )
        if self.algorithm not in ALGORITHMS:
            raise ChangeError(
                f"{change}: expected algorithm={' or '.join(ALGORITHMS)}, found {self.algorithm!r}"
            )
        return self

    def all_reduce_ns(self, size: ArrayLike) -> Floats:
        """Time of an all-reduce of `size` bytes of each worker, ns."""
        if self.algorithm == "tree":
            hops = (self.per_node - 1) * self.intra_latency_us + log2(self.nodes) * self.latency_us
            return 2 * self._transfer_ns(size) + 2 * hops * 1e3
        return 2 * self.gather_ns(size)

    def gather_ns(self, size: ArrayLike) -> Floats:
        """Time of a ring's all-gather or reduce-scatter of `size` bytes in total, ns."""
        return (self.workers - 1) / self.workers * self._transfer_ns(size) + self._around_ns

    def all_gather_ns(self, size: ArrayLike) -> Floats:
        """Time of an all-gather of `size` bytes in total, ns.

        gloo sends its block in two halves, and announces what it is ready to receive on the same
        connection. Of two workers the later one sends its first half at once, as the other has
        announced it already; its own announcement waits behind that half, and so the other's first
        half goes out together with its second. More workers announce and send on two connections.

        Source: facebookincubator/gloo, gloo/allgather.cc.
        """
        if self.gloo and self.workers == 2:
            return self.gather_ns(size) + 0.25 * self._transfer_ns(size)
        return self.gather_ns(size)

    def reduce_scatter_ns(self, size: ArrayLike) -> Floats:
        """Time of a reduce-scatter of `size` bytes of each worker, ns; gloo's is an all-reduce.

        Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, _reduce_scatter_base.
        """
        return self.all_reduce_ns(size) if self.gloo else self.gather_ns(size)

    def broadcast_ns(self, size: ArrayLike) -> Floats:
        """Time of a broadcast of `size` bytes, ns.

        Through a pipeline of all workers; gloo uses a tree, whose root sends all bytes once per level.

        Source: NVIDIA/nccl, src/graph/tuning.cc; facebookincubator/gloo, gloo/broadcast.cc.
        """
        if self.gloo:
            return ceil(log2(self.workers)) * (self._transfer_ns(size) + self.latency_us * 1e3)
        return self._transfer_ns(size) + self._around_ns

    def _transfer_ns(self, size: ArrayLike) -> Floats:
        """By the bandwidth of the slowest link in use."""
        used = [self.bandwidth_gbps] * (self.nodes > 1) + [self.intra_gbps] * (self.per_node > 1)
        return np.asarray(size, np.float64) * 8 / min(used)

    @property
    def _around_ns(self) -> float:
        """Latency of a message that passes through all workers, ns."""
        between = self.nodes - 1
        within = self.workers - 1 - between
        return (between * self.latency_us + within * self.intra_latency_us) * 1e3


FIXED_COST = (
    "collectives are bandwidth-bound but for a fixed cost; where recorded sizes do not show it, it is not "
    "known and counts as none, and the range also has it as long as the fastest call of the kind"
)


def time_factor(graph: Graph, tasks: Mask | Ids, factor: float, latency_us: float) -> Floats:
    """How many times as long collectives take whose bytes take `factor` times as long, if their fixed
    cost is `latency_us` where the recording does not show it."""
    kind, time = graph.once(_kinds), graph.tasks["duration_ns"].astype(np.float64)
    fixed = fixed_ns(kind, graph.tasks["bytes"], time, latency_us * 1e3)
    return np.asarray(factor + (1 - factor) * (fixed / np.maximum(time, 1))[tasks])


def _kinds(graph: Graph) -> Ids:
    """A number for the kind of each recorded collective, -1 for other tasks, shape (tasks,)."""
    calls = np.flatnonzero(select(graph, category="communication") & (graph.tasks["event"] >= 0))
    ranks = graph.threads["rank"][graph.tasks["thread"][calls]].tolist()
    named = zip(named_calls(graph.trace, graph.tasks["event"][calls]), ranks, strict=True)
    kinds = np.full(len(graph), -1)
    kinds[calls] = Interner[GroupKey]().codes(GroupKey.of(kind, rank) for (kind, _), rank in named)
    return kinds


_ALL_REDUCE = re.compile(r"all_?-?reduce", re.IGNORECASE)


def all_reduces(graph: Graph) -> Mask:
    """All-reduces, by their own name or the name of their call, bool, shape (tasks,)."""
    named = graph.tasks.text("name").where(lambda name: bool(_ALL_REDUCE.search(name)))
    called = select(graph, operator="*all_reduce*") | select(graph, operator="*allreduce*")
    return (named | called) & select(graph, category="communication")


def refuse_unsized(graph: Graph, change: str, reduces: Mask) -> None:
    """Raise ChangeError if there are no all-reduces, or their sizes are unknown."""
    if not reduces.any():
        raise ChangeError(f"{change}: these steps have no all-reduces; put ddp first")
    if (graph.tasks["bytes"][reduces] < 0).any():
        raise ChangeError(f"{change}: the trace does not record the sizes of its all-reduces")


def refuse_communication(graph: Graph, change: str) -> None:
    """Raise ChangeError if the steps communicate already."""
    if select(graph, category="communication").any():
        raise ChangeError(f"{change}: these steps communicate already")


def append_collectives(
    graph: Graph, threads: ArrayLike, names: Sequence[str], duration_ns: ArrayLike, **facts: Any
) -> tuple[Graph, Ids]:
    """Append communication to threads; `facts` are other columns of the tasks."""
    kind = {"category": "communication", "kind": "communication"}
    return append(graph, threads, names, duration_ns=np.rint(duration_ns), **kind, **facts)


@dataclass(frozen=True)
class CollectivePhase:
    """One phase of some collectives: its name, the thread that runs it, and each one's time, ns."""

    name: str
    thread: int
    duration_ns: Floats


def decompose(graph: Graph, tasks: Ids, phases: Sequence[CollectivePhase]) -> Graph:
    """Replace some collectives (tasks.id, shape (n,)) by phases on threads of their own, one after
    the other, with times of shape (n,).

    The task itself stays as the moment at which the phases may begin; tasks that waited for it wait
    for the last phase.
    """
    length = graph.tasks["duration_ns"].copy()
    length[tasks] = 0
    graph = graph.with_tasks(duration_ns=length)
    threads = np.repeat([phase.thread for phase in phases], len(tasks))
    names = [phase.name for phase in phases for _ in tasks]
    rows = np.tile(tasks, len(phases))
    facts: dict[str, Any] = {name: graph.tasks[name][rows] for name in ("step", "module")}
    facts["stage"] = graph.tasks.text("stage").take(rows)
    times = np.concatenate([phase.duration_ns for phase in phases])
    graph, new = append_collectives(graph, threads, names, times, **facts)
    chain = np.concatenate([tasks[None], new.reshape(len(phases), len(tasks))])
    following = _next_in_order(graph, tasks)
    graph = redirect(graph, tasks, chain[-1])
    graph = add_links(graph, chain[:-1].ravel(), chain[1:].ravel(), "communication")
    return add_links(graph, chain[-1][following >= 0], following[following >= 0], "communication")


def _next_in_order(graph: Graph, tasks: Ids) -> Ids:
    """The computation after each on the same thread, or -1: on a compute stream it has to wait."""
    thread = graph.tasks["thread"]
    collective = select(graph, category="communication")
    after = np.minimum(tasks + 1, len(graph) - 1)
    waits = (thread[after] == thread[tasks]) & ~collective[after] & (after > tasks)
    waits &= graph.threads["ordered"][thread[tasks]] > 0
    return np.where(waits, after, -1)


def add_blocking(
    graph: Graph,
    channel: int,
    tasks: ArrayLike,
    names: Sequence[str],
    duration_ns: ArrayLike,
    *,
    size: ArrayLike,
    copied_ns: tuple[ArrayLike, ArrayLike] = (0, 0),
    in_front: bool = False,
) -> tuple[Graph, Ids]:
    """Add a collective after each of some CPU tasks, or before it.

    The thread copies the data to send, waits, and copies the received data.

    Args:
        channel: threads.id of the channel that runs the collectives.
        copied_ns: time of the copies before, and of those after.

    Returns:
        The graph, and the numbers of the earlier tasks in it.
    """
    count = len(names)
    copies = np.stack([np.broadcast_to(time, count) for time in copied_ns], axis=1)
    labels = [f"copy {way} {name}" for name in names for way in ("for", "from")]
    graph, copied = insert(
        graph,
        np.repeat(np.asarray(tasks, np.int64), 2),
        labels,
        in_front=in_front,
        duration_ns=np.rint(copies.ravel()),
        category="cpu_op",
        kind="elementwise",
    )
    old = numbers_after(len(graph), copied)
    stage = graph.tasks.text("stage").take(copied[::2])
    step = graph.tasks["step"][copied[::2]]
    graph, new = append_collectives(graph, channel, names, duration_ns, bytes=size, step=step, stage=stage)
    moved = numbers_after(len(graph), new)
    copied = moved[copied]
    graph = add_links(graph, copied[::2], new, "communication")
    return add_links(graph, new, copied[1::2], "communication"), moved[old]


def blocks_its_caller(graph: Graph) -> Mask:
    """Collectives whose calling thread does nothing else meanwhile, bool, shape (tasks,)."""
    source, target = graph.links["source"].astype(np.int64), graph.links["target"]
    collective = graph.tasks.text("category").mask("communication")
    begun, done = collective[target], collective[source]
    # Only the wait lies between the task before and the task after it on its thread.
    waits = target[begun] * len(graph) + source[begun] + 1
    ends = source[done] * len(graph) + target[done]
    return mask_of(source[done][np.isin(ends, waits)], len(graph))
