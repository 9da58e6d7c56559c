"""How long collectives take on a network of nodes: rings and trees; and as gloo does them."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

import numpy as np
from numpy.typing import ArrayLike, NDArray

from stepscope.errors import ChangeError

Floats = NDArray[np.float64]
ALGORITHMS = ("ring", "tree")


@dataclass(frozen=True)
class Network:
    """Workers on nodes, and the links between them.

    Attributes:
        workers: how many there are.
        per_node: how many of them share a node.
        bandwidth_gbps: of a link between nodes, Gbit/s in each direction.
        latency_us: of a message between nodes.
        intra_gbps: of a link within a node.
        intra_latency_us: of a message within a node.
        algorithm: of all-reduces, `ring` or `tree`.
        gloo: whether collectives are gloo's, as on CPUs.

    Source: the terms are those of NCCL's cost model (NVIDIA/nccl, src/graph/tuning.cc): time is
    latency by the number of steps, and bytes by the bandwidth of the slowest link.
    """

    workers: int
    per_node: int = 1
    bandwidth_gbps: float = 10.0
    latency_us: float = 20.0
    intra_gbps: float = 10.0
    intra_latency_us: float = 20.0
    algorithm: str = "ring"
    gloo: bool = False

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return self.workers // self.per_node

    @property
    def slowest_gbps(self) -> float:
        """Bandwidth of the slowest link in use, Gbit/s."""
        used = [self.bandwidth_gbps] * (self.nodes > 1) + [self.intra_gbps] * (self.per_node > 1)
        return min(used)

    def checked(self, change: str) -> Network:
        """The network itself, if there is such a one.

        Raises:
            ChangeError: if it has fewer than two workers, nodes that are not full, a bandwidth not
                above 0, a latency below 0 or an unknown algorithm.
        """
        if self.workers < 2 or self.per_node < 1 or self.workers % self.per_node:
            raise ChangeError(f"{change}: expected at least 2 workers, per_node of them a node; "
                              f"found {self.workers}, {self.per_node} a node")  # fmt: skip
        speeds = self.bandwidth_gbps, self.intra_gbps
        delays = self.latency_us, self.intra_latency_us
        if min(speeds) <= 0 or min(delays) < 0:
            raise ChangeError(f"{change}: expected bandwidths above 0 and no latency below 0; "
                              f"found {speeds} Gbit/s and {delays} us")  # fmt: skip
        if self.algorithm not in ALGORITHMS:
            raise ChangeError(f"{change}: expected algorithm {' or '.join(ALGORITHMS)}, "
                              f"found {self.algorithm!r}")  # fmt: skip
        return self

    def all_reduce_ns(self, size: ArrayLike) -> Floats:
        """Time in which all workers have the sum of `size` bytes of each, ns."""
        size = np.asarray(size, np.float64)
        if self.algorithm == "tree":
            hops = (self.per_node - 1) * self.intra_latency_us + log2(self.nodes) * self.latency_us
            return 2 * self._transfer_ns(size) + 2 * hops * 1e3
        return 2 * self.gather_ns(size)

    def gather_ns(self, size: ArrayLike) -> Floats:
        """Time of a ring's all-gather or reduce-scatter of `size` bytes in all, ns."""
        size = np.asarray(size, np.float64)
        between = self.nodes - 1
        within = self.workers - 1 - between
        latency = between * self.latency_us + within * self.intra_latency_us
        share = (self.workers - 1) / self.workers
        return share * self._transfer_ns(size) + latency * 1e3

    def reduce_scatter_ns(self, size: ArrayLike) -> Floats:
        """Time of a reduce-scatter of `size` bytes of each, ns; gloo's is an all-reduce.

        Source: PyTorch, torch/csrc/distributed/c10d/ProcessGroupGloo.cpp, _reduce_scatter_base.
        """
        return self.all_reduce_ns(size) if self.gloo else self.gather_ns(size)

    def broadcast_ns(self, size: ArrayLike) -> Floats:
        """Time in which all workers have `size` bytes of one of them, ns.

        Down a pipeline of all workers; gloo's goes down a tree, and its root sends all of it once
        for each level.

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
