"""Execution traces of PyTorch itself: every call has its id in Kineto's trace, and threads need data."""

from __future__ import annotations

import queue
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from torch import nn
from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ExecutionTraceObserver, profile, record_function

import stepscope
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.graph import build_graph, data_basis, scale, simulate, with_execution_trace
from stepscope.graph.data_flow import data_pairs
from stepscope.trace.trace import Trace

STEPS = 3


def recorded(folder: Path) -> Trace:
    """Steps of a model of which a thread computes one branch, with their execution trace."""
    trunk, branch, head = nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 4)
    optimizer = torch.optim.SGD([*trunk.parameters(), *branch.parameters(), *head.parameters()], foreach=True)
    given, computed = queue.Queue[torch.Tensor | None](), queue.Queue[torch.Tensor]()

    def work() -> None:
        while (value := given.get()) is not None:
            computed.put(branch(value))

    thread = threading.Thread(target=work)
    thread.start()
    observer = ExecutionTraceObserver().register_callback(str(folder / "et.json"))
    config = _ExperimentalConfig(profile_all_threads=True)
    with profile(execution_trace_observer=observer, experimental_config=config) as profiler:
        for step in range(STEPS):
            with record_function(f"ProfilerStep#{step}"):
                hidden = trunk(torch.ones(32, 64))
                given.put(hidden)
                head(torch.relu(hidden) + computed.get()).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    observer.unregister_callback()
    given.put(None)
    thread.join()
    profiler.export_chrome_trace(str(folder / "trace.json"))
    return with_execution_trace(stepscope.open(folder / "trace.json", cache=False), folder / "et.json")


def test_threads_need_what_others_compute(tmp_path: Path) -> None:
    trace = recorded(tmp_path)
    operators = trace.events.text("category").mask("cpu_op", "annotation", "communication").sum()
    assert data_basis(trace) == (f"data dependencies of {operators:,} operators (execution trace et.json)",)
    names, thread = trace.events.text("name"), trace.events["track"]
    needed = [(names[source], names[target]) for source, target in zip(*data_pairs(trace), strict=True)]
    assert needed.count(("aten::linear", "aten::linear")) == STEPS  # the branch of the trunk
    assert needed.count(("aten::linear", "aten::add")) == STEPS  # and back
    assert (np.diff([thread[rows] for rows in data_pairs(trace)], axis=0) != 0).all()
    graph = build_graph(trace).check()
    slower = scale(graph, graph.threads["main"][graph.tasks["thread"]] == 0, 10_000)
    assert simulate(graph).step_ns == pytest.approx(graph.window.measured_ns, rel=0.01)
    assert simulate(slower).step_ns.mean() > 2 * simulate(graph).step_ns.mean()
    asked = [
        "whatif",
        str(tmp_path / "trace.json"),
        "--execution-trace",
        str(tmp_path / "et.json"),
        "--no-cache",
    ]
    assert f"based on   {data_basis(trace)[0]}" in CliRunner().invoke(stepscope_command, asked).output
