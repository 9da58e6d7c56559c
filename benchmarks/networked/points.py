"""What is measured: models, topologies, bandwidths and ways to average; and their predictions."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.networked.links import PAYLOAD, TOPOLOGIES, Topology
from benchmarks.networked.models import MODELS
from benchmarks.networked.trainers import FACTORS, RATIO, SLICE_ELEMENTS

CORES = os.cpu_count() or 1
LATENCY_US = 100
WITHIN_MBIT = 2000
BANDWIDTHS: Mapping[str, Sequence[int]] = {
    "2 workers": (300, 1000, 2000),
    "4 workers": (500, 1000),
    "2 nodes of 2": (250, 500),
}
WAYS: Mapping[str, Sequence[str]] = {
    "2 workers": ("ddp", "p3", "dgc"),
    "4 workers": ("ddp", "p3", "dgc", "blueconnect"),
    "2 nodes of 2": ("ddp", "dgc", "blueconnect"),
}


@dataclass(frozen=True)
class Point:
    """One point to predict and to measure."""

    model: str
    topology: Topology
    mbit: int
    way: str

    @property
    def changes(self) -> tuple[str, ...]:
        """The changes that predict it, as `stepscope whatif` takes them."""
        count = self.topology.workers
        shared = f"shared_cores:processes={count},cores={CORES}"
        if self.way == "p3":
            return f"p3:{self._network},slice_kb={4 * SLICE_ELEMENTS / 1000}", shared
        ddp = f"ddp:{self._network}"
        if self.way == "dgc":
            return ddp, f"dgc:ratio={RATIO},workers={count}", shared
        if self.way == "blueconnect":
            return ddp, self._blueconnect, shared
        return ddp, shared

    @property
    def _network(self) -> str:
        nodes = f"workers={self.topology.workers},bandwidth_gbps={_gbps(self.mbit)},"
        within = (
            f",per_node={self.topology.per_node},intra_gbps={_gbps(WITHIN_MBIT)}"
            f",intra_latency_us={LATENCY_US}"
        )
        return f"{nodes}latency_us={LATENCY_US}{within if self.topology.nodes > 1 else ''}"

    @property
    def _blueconnect(self) -> str:
        inner = WITHIN_MBIT if self.topology.nodes > 1 else self.mbit
        factors = "x".join(map(str, FACTORS))
        gbps = f"{_gbps(inner)}x{_gbps(self.mbit)}"
        one_switch = str(self.topology.nodes == 1).lower()
        levels = f"factors={factors},gbps={gbps},one_switch={one_switch}"
        return f"blueconnect:{levels},latency_us={LATENCY_US}"


def points(models: Sequence[str] = (), topologies: Sequence[str] = ()) -> Iterator[Point]:
    """All points, or those of some models and topologies."""
    for model in models or MODELS:
        for topology in TOPOLOGIES:
            if topologies and topology.name not in topologies:
                continue
            for mbit in BANDWIDTHS[topology.name]:
                for way in WAYS[topology.name]:
                    yield Point(model, topology, mbit, way)


def _gbps(mbit: int) -> float:
    """What of a bandwidth is payload."""
    return round(mbit / 1000 * PAYLOAD, 4)
