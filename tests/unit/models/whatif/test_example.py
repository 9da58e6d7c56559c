"""The changes that docs/guide/whatif.md writes as examples, run as they are written there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from drawn_steps import graph_of

import stepscope
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, select
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

STEP = """
    main     |   0  50 | ProfilerStep#0
    main     |  10  20 | nn.Module: Attention_0 | Python_id=1 Python_module_id=0
    main     |  11  13 | cudaLaunchKernel   | corr=7
    main     |  14  16 | cudaLaunchKernel   | corr=8
    main     |  30  40 | Optimizer.step#Adam.step
    main     |  32  34 | cudaLaunchKernel   | corr=9
    stream 7 |  20 120 | volta_sgemm_128x64 | corr=7
    stream 7 | 120 150 | softmax_warp       | corr=8
    stream 7 | 150 160 | adam               | corr=9
"""


def example() -> str:
    text = (Path(__file__).parents[4] / "docs/guide/whatif.md").read_text("utf-8")
    (code,) = re.findall(r"## Write your own change.*?```python\n(.*?)```", text, re.DOTALL)
    return str(code)


def trace_with_attention() -> Trace:
    """The module of the drawn step is called as the example's selection wants it."""
    trace = annotate(drawn_trace(STEP))
    assert np.isin([0], trace.events["module"]).any()
    table = Table(MODULES, {"parent": [-1], "path": ["layer.attention"]})
    return trace.with_table(table)


def test_the_example_runs_and_predicts_what_it_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stepscope, "open", lambda path: trace_with_attention())
    exec(compile(example(), "docs/guide/whatif.md", "exec"), {"__name__": "example"})
    # The product takes 80 of 100, and the softmax of 30 goes; a copy of 30 follows the update.
    assert capsys.readouterr().out.splitlines() == [
        "flash_attention [160000] [110000]",
        "save_every_step [160000] [190000]",
    ]


def test_the_example_runs_on_a_step_of_a_cpu(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "main | 0 50 | ProfilerStep#0\nmain | 30 40 | Optimizer.step#Adam.step\nmain | 32 34 | aten::add_"
    monkeypatch.setattr(stepscope, "open", lambda path: annotate(drawn_trace(text)))
    exec(compile(example(), "docs/guide/whatif.md", "exec"), {"__name__": "example"})
    assert "save_every_step [50000]" in capsys.readouterr().out


def test_what_the_example_removes_is_the_modules_own() -> None:
    graph: Graph = graph_of(STEP)
    assert select(graph, module="*.attention").sum() == 0
