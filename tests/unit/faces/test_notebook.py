"""Notebooks: a trace is shown as its report, and `%%stepscope` records a cell."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import stepscope
from stepscope.errors import StepscopeError
from stepscope.testing import drawn_trace

JOB = Path(__file__).parents[2] / "fuzz/corpus/commands/job.json"
STEPS = """
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters())
for _ in range(12):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


class Shell:
    """As much of IPython's shell as an extension uses."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.magics: dict[str, Any] = {}
        self.compile = SimpleNamespace(cache=lambda source: "<cell>")

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[f"%%{name}" if kind == "cell" else f"%{name}"] = function

    def transform_cell(self, cell: str) -> str:
        return cell


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shell:
    monkeypatch.chdir(tmp_path)
    shell = Shell()
    stepscope.load_ipython_extension(shell)
    return shell


def test_a_trace_with_steps_is_shown_as_its_report() -> None:
    html = stepscope.open(JOB)._repr_html_()
    assert html is not None
    root = ElementTree.fromstring(html)
    assert root.tag.endswith("svg")
    assert "forward" in "".join(root.itertext())


def test_a_trace_without_steps_is_shown_as_text() -> None:
    stepscope.open(JOB)
    assert drawn_trace("main | 0 10 | aten::mm")._repr_html_() is None


def test_a_cell_is_recorded_and_its_names_are_the_notebook_s(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace = shell.magics["%%stepscope"]("--warmup 2 --steps 4 -o cell.stepscope", STEPS)
    assert trace["steps"]["step"].tolist() == [2, 3, 4, 5]
    assert (tmp_path / "cell.stepscope").exists()
    assert "optimizer" in shell.user_ns


def test_the_error_of_a_cell_is_raised(shell: Shell) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ZeroDivisionError):
        shell.magics["%%stepscope"]("", "1 / 0")


def test_a_wrong_option_is_an_error_of_the_cell(shell: Shell) -> None:
    with pytest.raises(StepscopeError, match="unrecognized arguments: --bogus; usage: %%stepscope"):
        shell.magics["%%stepscope"]("--bogus", "")
