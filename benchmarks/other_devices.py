"""Predicted against measured on other devices, from the shared traces.

    python benchmarks/other_devices.py TRACES [--cpu CAPTURE]

Prints the tables of docs/evidence/accuracy/other_devices.md: kernels of one device scaled to
another, where both ran the same model; kernels of a step from their operations alone; and, with
--cpu, a step recorded on a CPU against the same model on a V100:

    stepscope run --warmup 1 --steps 1 benchmarks/recorded_scripts/resnet50_v100.py
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stepscope.base.arrays import Mask
from stepscope.facts.annotate import annotate
from stepscope.facts.roofline.rates import rates_of
from stepscope.graph import Graph, build_graph, select
from stepscope.models.devices.device_work import EFFICIENCY, offload
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.anchor import mean_ms
from stepscope.models.whatif.changes.faster_gpu import kernels_on_ns
from stepscope.models.whatif.parts.kernel_times import FIXED_NS, Rates, device_of, in_tf32, times_ns
from stepscope.models.whatif.prediction import Baseline
from stepscope.read import read

PAIRS = (
    (
        "BERT-small, inference",
        "pair_h100_mi300x/bert_small_h100.json.gz",
        "pair_h100_mi300x/bert_small_mi300.json.gz",
    ),
    (
        "TimeSformer, inference",
        "pair_h100_mi300x/timesformer_h100.json.gz",
        "pair_h100_mi300x/timesformer_mi300.json.gz",
    ),
    ("a training job, DDP", "diff_a100_v100/a100_rank3of8.json.gz", "diff_a100_v100/v100_rank1of2.json.gz"),
)
COUNTED = (
    ("BERT-small", "pair_h100_mi300x/bert_small_h100.json.gz"),
    ("BERT-small", "pair_h100_mi300x/bert_small_mi300.json.gz"),
    ("TimeSformer", "pair_h100_mi300x/timesformer_h100.json.gz"),
    ("TimeSformer", "pair_h100_mi300x/timesformer_mi300.json.gz"),
    ("ResNet-50, training", "kineto_resnet50_v100/num_workers_0.json.gz"),
    ("a training job", "diff_a100_v100/a100_rank3of8.json.gz"),
    ("a training job", "diff_a100_v100/v100_rank1of2.json.gz"),
    ("ResNet, training, checkpointing", "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz"),
)
RESNET = "kineto_resnet50_v100/num_workers_0.json.gz"


class Comparison(NamedTuple):
    """Kernel time of a step, ms, predicted and measured."""

    model: str
    how: str
    predicted_ms: float
    measured_ms: float
    known: float

    @property
    def factor(self) -> float:
        """How many times as long, or as short, as predicted."""
        ratio = self.measured_ms / self.predicted_ms
        return max(ratio, 1 / ratio)


class Kernels(NamedTuple):
    """A trace's graph, its kernels without collectives, and its device."""

    graph: Graph
    rows: Mask
    rates: Rates

    def per_step_ms(self, time_ns: np.ndarray) -> float:
        """Total of some times of tasks."""
        return float(time_ns.sum()) / len(self.graph.window.steps) / 1e6

    @property
    def measured_ms(self) -> float:
        """Kernel time of a step."""
        return self.per_step_ms(self.graph.tasks["duration_ns"][self.rows])


@cache
def kernels_of(file: Path) -> Kernels:
    """The kernels of a trace."""
    graph = build_graph(annotate(read(file)))
    rows = select(graph, category="kernel", on_device=True)
    rows &= ~graph.tasks.text("name").where(lambda name: "nccl" in name.lower())
    rates = rates_of(str(device_of(graph)["name"]))
    assert rates is not None
    return Kernels(graph, rows, rates)


def scaled(traces: Path) -> Iterator[Comparison]:
    """Kernels of one device scaled to the other, in both directions."""
    for model, first, second in PAIRS:
        for here, there in ((first, second), (second, first)):
            old, new = kernels_of(traces / here), kernels_of(traces / there)
            for told in (False, True) if allows_tf32(old, new) else (False,):
                time = kernels_on_ns(old.graph, old.rates, new.rates, told)[old.rows]
                yield Comparison(model, names(old, new, told), old.per_step_ms(time), new.measured_ms, 1.0)


def allows_tf32(old: Kernels, new: Kernels) -> bool:
    """Whether a job used TF32 on the new device, which a trace of the old one cannot say."""
    return old.rates["tf32"] is None and bool(in_tf32(new.graph).any())


def names(old: Kernels, new: Kernels, told: bool) -> str:
    """Both devices, and whether the prediction was told of TF32."""
    return f"{old.rates['name']} to {new.rates['name']}" + told * ", `tf32=yes`"


def steps(traces: Path) -> Iterator[Comparison]:
    """Whole steps on the other device; the CPU stays the one that recorded."""
    for model, first, second in PAIRS:
        for here, there in ((first, second), (second, first)):
            old, new = kernels_of(traces / here), kernels_of(traces / there)
            measured = float(new.graph.window.measured_ns.mean()) / 1e6
            for told in (False, True) if allows_tf32(old, new) else (False,):
                request = parse_request(f"faster_gpu:to={new.rates['name']},tf32={told}", CHANGES)
                predicted = mean_ms(Baseline(old.graph).predict_time([request])[0])
                yield Comparison(f"{model}, step", names(old, new, told), predicted, measured, 1.0)


def counted(traces: Path) -> Iterator[Comparison]:
    """Kernels of known work by their operations alone."""
    for model, file in COUNTED:
        graph, rows, rates = found = kernels_of(traces / file)
        bound = np.fmax(*times_ns(graph, rates))
        known = rows & (bound > 0)
        measured = found.per_step_ms(graph.tasks["duration_ns"][known])
        predicted = found.per_step_ms(FIXED_NS + bound[known] / EFFICIENCY)
        share = measured / found.measured_ms
        yield Comparison(model, str(rates["name"]), predicted, measured, share)


def from_cpu(capture: Path, traces: Path) -> Comparison:
    """A step recorded on a CPU, predicted for a V100 that ran the same model."""
    graph, v100 = build_graph(annotate(read(capture))), kernels_of(traces / RESNET)
    moved = offload(graph, v100.rates)
    predicted = moved.tasks["duration_ns"][moved.on_device].sum() / len(graph.window.steps) / 1e6
    return Comparison("ResNet-50, training", "CPU to V100", predicted, v100.measured_ms, 1.0)


def table(rows: Iterator[Comparison]) -> Iterator[str]:
    """The comparisons as Markdown."""
    yield "| model | | known | predicted, ms | measured, ms | error | factor |"
    yield "|---|---|---:|---:|---:|---:|---:|"
    for one in rows:
        error = one.predicted_ms / one.measured_ms - 1
        yield (
            f"| {one.model} | {one.how} | {one.known:.0%} | {one.predicted_ms:.3g} | "
            f"{one.measured_ms:.3g} | {error:+.0%} | {one.factor:.2f} |"
        )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--cpu", type=Path)
    asked = parser.parse_args()
    print(*table(scaled(asked.traces)), "", *table(steps(asked.traces)), "", sep="\n")
    print(*table(counted(asked.traces)), sep="\n")
    if asked.cpu:
        print("", *table(iter([from_cpu(asked.cpu, asked.traces)])), sep="\n")


if __name__ == "__main__":
    main()
