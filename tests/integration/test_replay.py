"""The unchanged replay of every step of every training trace against the measured step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from stepscope.graph import build_graph, build_ranks, select, simulate
from stepscope.trace.trace import Trace

TRAINING = (
    "critical_path_a100/*",
    "diff_a100_v100/*",
    "dlrm_8rank_v100/*",
    "edge_cases/a100_rank0of16.json.gz",
    "edge_cases/backward_thread.json",
    "edge_cases/cpu_only.json.gz",
    "edge_cases/no_*.json.gz",
    "kineto_resnet50_v100/*",
    "mtia_training/*",
    "nccl_args_a100/*",
    "resnet_2080ti_with_et/kineto.json.gz",
    "resnet_ddp_mi300x/*",
    "steps_ns_v100/*",
)


@pytest.mark.parametrize("pattern", TRAINING)
def test_the_unchanged_replay_reproduces_every_step(
    traces: Path, opened: Callable[[str], Trace], pattern: str
) -> None:
    files = sorted(traces.glob(pattern))
    assert files
    errors = np.concatenate([_errors(opened(str(file.relative_to(traces)))) for file in files])
    assert np.abs(errors).mean() < 0.02
    assert np.abs(errors).max() < 0.05


def test_ranks_that_wait_for_each_other_replay_as_they_ran(opened: Callable[[str], Trace]) -> None:
    trace = opened("dlrm_8rank_v100")
    graph = build_ranks(trace).check()
    together = simulate(graph)
    measured = np.mean([build_graph(trace, rank).window.measured_ns for rank in range(8)])
    assert select(graph, name="arrival").sum() == 8 * 8
    assert abs(together.step_ns[0] / measured - 1) < 0.02


def _errors(trace: Trace) -> np.ndarray:
    """Relative errors of the steps in a row, and of each step on its own."""
    row = build_graph(trace).check()
    graphs = [row, *(build_graph(trace, steps=(step, step)) for step in row.window.steps)]
    return np.concatenate([simulate(graph).step_ns / graph.window.measured_ns - 1 for graph in graphs])
