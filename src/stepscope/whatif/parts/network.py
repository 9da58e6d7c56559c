"""A cost model of collectives on a network of nodes: rings, trees, and gloo's."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil, log2

import numpy as np
from numpy.typing import ArrayLike

from stepscope.arrays import Floats
from stepscope.errors import ChangeError

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

    @property
    def slowest_gbps(self) -> float:
        """Bandwidth of the slowest link in use, Gbit/s."""
        used = [self.bandwidth_gbps] * (self.nodes > 1) + [self.intra_gbps] * (self.per_node > 1)
        return min(used)

    def checked(self, change: str) -> Network:
        """The network itself, if it is valid.

        Raises:
            ChangeError: if it has fewer than two workers, nodes that are not full, a bandwidth that
                is not above 0, a negative latency, or an unknown algorithm.
        """
        if self.workers < 2 or self.per_node < 1 or self.workers % self.per_node:
            raise ChangeError(f"{change}: expected at least 2 workers, a multiple of per_node; "
                              f"found {self.workers} and {self.per_node}")  # fmt: skip
        speeds = self.bandwidth_gbps, self.intra_gbps
        delays = self.latency_us, self.intra_latency_us
        if min(speeds) <= 0 or min(delays) < 0:
            raise ChangeError(f"{change}: expected bandwidths above 0 and no negative latency; "
                              f"found {speeds} Gbit/s and {delays} us")  # fmt: skip
        if self.algorithm not in ALGORITHMS:
            raise ChangeError(f"{change}: expected algorithm={' or '.join(ALGORITHMS)}, "
                              f"found {self.algorithm!r}")  # fmt: skip
        return self

    def all_reduce_ns(self, size: ArrayLike) -> Floats:
        """Time of an all-reduce of `size` bytes of each worker, ns."""
        size = np.asarray(size, np.float64)
        if self.algorithm == "tree":
            hops = (self.per_node - 1) * self.intra_latency_us + log2(self.nodes) * self.latency_us
            return 2 * self._transfer_ns(size) + 2 * hops * 1e3
        return 2 * self.gather_ns(size)

    def gather_ns(self, size: ArrayLike) -> Floats:
        """Time of a ring's all-gather or reduce-scatter of `size` bytes in total, ns."""
        size = np.asarray(size, np.float64)
        between = self.nodes - 1
        within = self.workers - 1 - between
        latency = between * self.latency_us + within * self.intra_latency_us
        share = (self.workers - 1) / self.workers
        return share * self._transfer_ns(size) + latency * 1e3

    def all_gather_ns(self, size: ArrayLike) -> Floats:
        """Time of an all-gather of `size` bytes in total, ns.

        gloo sends its block in two halves, and announces what it is ready to receive on the same
        connection. Of two workers the later one sends its first half at once, as the other has
        announced it already; its own announcement waits behind that half, and so the other's first
        half goes out together with its second. More workers announce and send on two connections.

        Source: facebookincubator/gloo, gloo/allgather.cc.
        """
        size = np.asarray(size, np.float64)
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

        Through a pipeline of all workers; gloo uses a tree, whose root sends all bytes once per
        level.

        Source: NVIDIA/nccl, src/graph/tuning.cc; facebookincubator/gloo, gloo/broadcast.cc.
        """
        size = np.asarray(size, np.float64)
        if self.gloo:
            levels = ceil(log2(self.workers))
            return levels * (self._transfer_ns(size) + self.latency_us * 1e3)
        between = self.nodes - 1
        latency = between * self.latency_us + (self.workers - 1 - between) * self.intra_latency_us
        return self._transfer_ns(size) + latency * 1e3

    def _transfer_ns(self, size: Floats) -> Floats:
        return size * 8 / self.slowest_gbps
