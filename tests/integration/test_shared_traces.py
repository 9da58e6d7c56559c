"""Every real trace against an independent count by plain `json`: nothing lost, nothing moved."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepscope.read import read
from stepscope.trace.trace import Trace

TRACES = [
    "critical_path_a100/alexnet.json.gz",
    "critical_path_a100/cuda_event_sync.json.gz",
    "critical_path_a100/cuda_event_sync_multi_stream.json.gz",
    "critical_path_a100/simple_add.json.gz",
    "cuda_graph_vllm/graph_capture.json.gz",
    "cuda_graph_vllm/graph_execution.json.gz",
    "diff_a100_v100/a100_rank3of8.json.gz",
    "diff_a100_v100/v100_rank1of2.json.gz",
    "dlrm_8rank_v100/rank0.json.gz",
    "dlrm_8rank_v100/rank1.json.gz",
    "dlrm_8rank_v100/rank2.json.gz",
    "dlrm_8rank_v100/rank3.json.gz",
    "dlrm_8rank_v100/rank4.json.gz",
    "dlrm_8rank_v100/rank5.json.gz",
    "dlrm_8rank_v100/rank6.json.gz",
    "dlrm_8rank_v100/rank7.json.gz",
    "eager_b200/rank0.json.gz",
    "edge_cases/a100_rank0of16.json.gz",
    "edge_cases/backward_thread.json",
    "edge_cases/cpu_only.json.gz",
    "edge_cases/gpu_only_mi210.json.gz",
    "edge_cases/mi250_rocm62.json.gz",
    "edge_cases/no_distributed_info.json.gz",
    "edge_cases/no_gpu.json.gz",
    "edge_cases/torch_compile_triton.json.gz",
    "edge_cases/triton.json.gz",
    "kineto_resnet50_v100/num_workers_0.json.gz",
    "kineto_resnet50_v100/num_workers_4.json.gz",
    "mtia_training/rank0.json.gz",
    "nccl_args_a100/rank0.json.gz",
    "pair_h100_mi300x/bert_small_h100.json.gz",
    "pair_h100_mi300x/bert_small_mi300.json.gz",
    "pair_h100_mi300x/timesformer_h100.json.gz",
    "pair_h100_mi300x/timesformer_mi300.json.gz",
    "resnet_2080ti_with_et/kineto.json.gz",
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz",
    "steps_ns_v100/rank0.json.gz",
]
ELSEWHERE = ("malformed", "jax_xplane", "execution_trace")


@dataclass(frozen=True)
class Case:
    """A file read by stepscope and by `json`."""

    trace: Trace
    recorded: list[dict[str, Any]]

    def phase(self, *letters: str) -> list[dict[str, Any]]:
        return [event for event in self.recorded if event.get("ph") in letters]


@pytest.fixture(scope="module")
def case(traces: Path, request: pytest.FixtureRequest) -> Case:
    path = traces / request.param
    opener: Callable[..., Any] = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as file:
        text = file.read().decode("utf-8", "replace")
    data = json.loads(text, strict=False, parse_float=Decimal)
    return Case(read(path), data if isinstance(data, list) else data["traceEvents"])


every_trace = pytest.mark.parametrize("case", TRACES, indirect=True)


def nanoseconds(us: Any) -> int:
    return round(Decimal(us) * 1000)


def arrows(case: Case) -> int:
    """One for each head, and for each tail that has none."""
    heads, tails = case.phase("t", "f"), case.phase("s")
    ends = Counter((event.get("cat"), str(event.get("id"))) for event in tails)
    met = {(event.get("cat"), str(event.get("id"))) for event in heads}
    alone = sum(count - (key in met) for key, count in ends.items())
    return len(heads) + alone


@every_trace
def test_every_event_is_accounted_for(case: Case) -> None:
    trace, slices = case.trace, case.phase("X")
    assert len(trace.events) == len(slices) + len(case.phase("B"))
    marks = len(trace["instants"]) + len(trace["memory"])
    told = ("X", "B", "E", "M", "s", "t", "f", "C", "b", "e")
    assert marks == sum(event.get("ph") not in told for event in case.recorded)
    assert len(trace["flows"]) == arrows(case)
    assert not list(trace["warnings"].rows())


@every_trace
def test_times_are_exact_to_the_nanosecond(case: Case) -> None:
    events, origin = case.trace.events, case.trace.metadata.origin_ns
    position = {source: row for row, source in enumerate(events["source"].tolist())}
    start = (events["start_ns"] + origin).tolist()
    duration = events["duration_ns"].tolist()
    wrong = [
        (source, event)
        for source, event in enumerate(case.recorded)
        if event.get("ph") == "X"
        and (
            start[position[source]] != nanoseconds(event["ts"])
            or duration[position[source]] != nanoseconds(event.get("dur", 0))
        )
    ]
    assert wrong == []


@every_trace
def test_names_and_arguments_are_those_recorded(case: Case) -> None:
    trace = case.trace
    names = list(trace.events.text("name"))
    chosen = np.linspace(0, len(trace.events) - 1, 200).astype(int).tolist()
    for row in chosen:
        event = case.recorded[int(trace.events["source"][row])]
        assert names[row] == str(event["name"])
        plain = json.loads(json.dumps(event.get("args", {}), default=float))
        assert trace.event_arguments(row) == plain


def test_every_file_is_read_here_or_elsewhere(traces: Path) -> None:
    present = {str(path.relative_to(traces)) for path in traces.rglob("*.json*")}
    assert {name for name in present if not any(part in name for part in ELSEWHERE)} == set(TRACES)
