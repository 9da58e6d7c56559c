"""Network namespaces joined by shaped links: one switch, or two nodes with a slow link between."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

# Of a frame of 1514 bytes, which tc counts, TCP over IPv4 with time stamps carries 1448.
PAYLOAD = 1448 / 1514


@dataclass(frozen=True)
class Topology:
    """Workers and the links between them.

    Attributes:
        name: for tables.
        nodes: number of nodes, each with a switch.
        per_node: workers at each switch.
    """

    name: str
    nodes: int
    per_node: int

    @property
    def workers(self) -> int:
        """Number of workers."""
        return self.nodes * self.per_node


class Links:
    """The namespaces of one topology, whose links can be shaped again.

    Every worker has an interface `lan` that leads to its node's switch; with two workers in all,
    to the other one. Both ends of a link are shaped, so that a worker neither sends nor receives
    faster.
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self._tag = f"ss{os.getpid()}"
        self._switches = [f"{self._tag}n{node}" for node in range(topology.nodes)]
        self._workers = [f"{self._tag}w{rank}" for rank in range(topology.workers)]

    def prefix(self, rank: int) -> list[str]:
        """Words before the command of a worker's process."""
        return ["ip", "netns", "exec", self._workers[rank]]

    @property
    def _is_direct(self) -> bool:
        return self.topology.workers == 2

    def make(self) -> None:
        """Make the namespaces, switches and links."""
        for name in (*self._switches, *self._workers):
            shell("ip netns add", name)
            shell(f"ip -n {name} link set lo up")
        if self._is_direct:
            first, second = self._workers
            shell(f"ip link add lan netns {first} type veth peer name lan netns {second}")
        else:
            self._make_switches()
        for rank, name in enumerate(self._workers):
            shell(f"ip -n {name} addr add 10.77.0.{rank + 1}/24 dev lan")
            shell(f"ip -n {name} link set lan up")

    def _make_switches(self) -> None:
        for name in self._switches:
            shell(f"ip -n {name} link add switch type bridge")
            shell(f"ip -n {name} link set switch up")
        for rank, name in enumerate(self._workers):
            switch = self._switches[rank // self.topology.per_node]
            shell(f"ip link add lan netns {name} type veth peer name w{rank} netns {switch}")
            _plug(switch, f"w{rank}")
        if len(self._switches) == 2:
            first, second = self._switches
            shell(f"ip link add between netns {first} type veth peer name between netns {second}")
            _plug(first, "between")
            _plug(second, "between")

    def shape(self, mbit: int, within_mbit: int) -> None:
        """Set the bandwidth between nodes, and to each worker.

        Args:
            mbit: between nodes; with one node, of each worker's link.
            within_mbit: of a worker's link to its node's switch, with several nodes.
        """
        own = mbit if self.topology.nodes == 1 else within_mbit
        for rank, name in enumerate(self._workers):
            _shape(name, "lan", own)
            if self._is_direct:
                continue
            _shape(self._switches[rank // self.topology.per_node], f"w{rank}", own)
        if self.topology.nodes > 1:
            for switch in self._switches:
                _shape(switch, "between", mbit)

    def remove(self) -> None:
        """Remove all namespaces, and with them their links."""
        for name in (*self._switches, *self._workers):
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


@contextmanager
def links(topology: Topology) -> Iterator[Links]:
    """The links of a topology, removed afterwards."""
    made = Links(topology)
    try:
        made.make()
        yield made
    finally:
        made.remove()


def can_shape() -> bool:
    """Whether this process may make namespaces and shape links."""
    return os.geteuid() == 0 and bool(shutil.which("ip") and shutil.which("tc"))


def shell(*words: str) -> None:
    """Run a command."""
    subprocess.run(" ".join(words).split(), check=True)


def _plug(switch: str, port: str) -> None:
    shell(f"ip -n {switch} link set {port} master switch up")


def _shape(name: str, device: str, mbit: int) -> None:
    shaped = f"rate {mbit}mbit burst 128kb latency 200ms"
    shell(f"ip netns exec {name} tc qdisc replace dev {device} root tbf {shaped}")


def environment(rank: int, workers: int, port: int) -> dict[str, str]:
    """The variables of torchrun for a worker; rank 0 is the meeting point."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lan",
        "WORKER_ADDRESS": f"10.77.0.{rank + 1}",
    }


TOPOLOGIES: Sequence[Topology] = (
    Topology("2 workers", 1, 2),
    Topology("4 workers", 1, 4),
    Topology("2 nodes of 2", 2, 2),
)
