"""Jobs of 4 data-parallel by 4 pipeline ranks whose balanced step time is known by construction."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepscope import open as open_trace
from stepscope.errors import ChangeError
from stepscope.faces.terminal.commands import stepscope
from stepscope.graph import Graph, build_ranks
from stepscope.models.whatif import CHANGES, Prediction, parse_request, predict

sys.path.append(str(Path(__file__).parents[2] / "graph"))
from pipelined_job import Job

Compute = Callable[[int, int], float]


def even(rank: int, batch: int) -> float:
    return 1000.0


def heavy_stage(rank: int, batch: int) -> float:
    return 1500.0 if rank % 4 == 2 else 1000.0


def varying(rank: int, batch: int) -> float:
    """Sequence lengths differ between micro-batches and replicas."""
    return 600.0 + 100 * ((7 * batch + 3 * (rank // 4)) % 8)


def slowed(compute: Compute, slow: int, factor: float = 2.5) -> Compute:
    return lambda rank, batch: compute(rank, batch) * (factor if rank == slow else 1)


def graph_of(job: Job, folder: Path) -> Graph:
    return build_ranks(open_trace(job.write(folder / "job"), cache=False)).check()


def balanced(graph: Graph) -> Prediction:
    return predict(graph, [parse_request("no_straggler", CHANGES)])


INTERLEAVED: dict[str, Any] = {"chunks": 2}
ZERO_BUBBLE: dict[str, Any] = {"zero_bubble": True}


@pytest.mark.parametrize(
    ("compute", "slow", "kernels", "schedule"),
    [
        pytest.param(even, 0, 2, {}, marks=pytest.mark.full),
        (even, 6, 2, {}),
        pytest.param(even, 15, 2, {}, marks=pytest.mark.full),
        pytest.param(heavy_stage, 5, 3, {}, marks=pytest.mark.main),
        pytest.param(varying, 10, 2, {}, marks=pytest.mark.full),
        pytest.param(even, 6, 2, INTERLEAVED, marks=pytest.mark.full),
        pytest.param(even, 6, 2, ZERO_BUBBLE, marks=pytest.mark.main),
        (varying, 10, 2, INTERLEAVED),
        pytest.param(varying, 10, 2, ZERO_BUBBLE, marks=pytest.mark.full),
    ],
)
def test_one_slow_worker_is_balanced(
    compute: Compute, slow: int, kernels: int, schedule: dict[str, Any], tmp_path: Path
) -> None:
    def count(stage: int) -> int:
        return kernels if stage == 2 else 2

    unbalanced = Job(compute_us=slowed(compute, slow), kernels=count, **schedule)
    even_job = Job(compute_us=compute, kernels=count, **schedule)
    answer = balanced(graph_of(unbalanced, tmp_path))
    assert answer.replayed_step_ms == pytest.approx(unbalanced.step_us / 1000, rel=0.002)
    assert answer.predicted_step_ms == pytest.approx(even_job.step_us / 1000, rel=0.002)


@pytest.mark.main
def test_without_recorded_waits_between_streams_it_is_balanced_likewise(tmp_path: Path) -> None:
    job, folder = Job(compute_us=slowed(even, 6)), tmp_path / "job"
    job.write(folder)
    for path in folder.iterdir():
        trace = json.loads(path.read_text())
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e["cat"] != "cuda_sync"]
        path.write_text(json.dumps(trace))
    answer = balanced(build_ranks(open_trace(folder, cache=False)))
    assert answer.predicted_step_ms == pytest.approx(Job().step_us / 1000, rel=0.01)


@pytest.mark.parametrize("kernels", [2, 3])
def test_a_stage_with_more_work_is_no_straggler(kernels: int, tmp_path: Path) -> None:
    """Nor if its ranks run the same kernels as others."""

    def count(stage: int) -> int:
        return kernels if stage == 2 else 2

    graph = graph_of(Job(compute_us=heavy_stage, kernels=count), tmp_path)
    with pytest.raises(ChangeError, match="all ranks work about as long as their peers"):
        balanced(graph)


@pytest.mark.main
def test_the_slow_worker_is_the_first_finding(tmp_path: Path) -> None:
    """Not the communication that waits for it."""
    job = Job(compute_us=slowed(even, 6)).write(tmp_path / "job")
    answer = json.loads(CliRunner().invoke(stepscope, ["analyze", str(job), "--json"]).stdout)
    first = answer["findings"][0]
    assert first["rule"] == "straggling_rank"
    assert "Rank 6" in first["what"]


def test_a_faster_link_helps_where_the_slow_link_is(tmp_path: Path) -> None:
    def slow_link(source: int, target: int) -> float:
        return 2000.0 if {source, target} == {5, 6} else 100.0

    def fast_link(source: int, target: int) -> float:
        return slow_link(source, target) / 2

    graph = graph_of(Job(transfer_us=slow_link), tmp_path)
    faster = predict(graph, [parse_request("bandwidth:factor=2", CHANGES)])
    expected = Job(transfer_us=fast_link, reduce_us=250.0).step_us / 1000
    assert faster.predicted_step_ms == pytest.approx(expected, rel=0.002)
