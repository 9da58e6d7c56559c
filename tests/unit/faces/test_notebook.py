"""Notebooks: a trace is shown as its report, and `%%stepscope` records a cell."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest

import stepscope
from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.errors import StepscopeError
from stepscope.graph.build_graph import build_graph
from stepscope.models.diff import compare
from stepscope.models.whatif import CHANGES, parse_request, predict
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
        self.shown: dict[str, Callable[[Any], str]] = {}
        html = SimpleNamespace(for_type_by_name=self.show_type)
        self.display_formatter = SimpleNamespace(formatters={"text/html": html})

    def show_type(self, module: str, name: str, show: Callable[[Any], str]) -> None:
        assert hasattr(import_module(module), name)
        self.shown[name] = show

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


def test_answers_are_shown_as_the_terminal_shows_them(shell: Shell) -> None:
    trace = stepscope.open(JOB)
    answers = {
        "Analysis": (analysis_of(RuleContext(trace), RULES), "Batches have 8 rows"),
        "Prediction": (predict(build_graph(trace), [parse_request("dataloader", CHANGES)]), "predicted"),
        "RunComparison": (compare(trace, trace), "B takes as long as A"),
    }
    assert shell.shown.keys() == answers.keys()
    for name, (answer, words) in answers.items():
        assert type(answer).__name__ == name
        text = "".join(ElementTree.fromstring(shell.shown[name](answer)).itertext())
        assert words in text.replace("\xa0", " ")


def test_the_error_of_a_cell_is_raised(shell: Shell) -> None:
    pytest.importorskip("torch")
    with pytest.raises(ZeroDivisionError):
        shell.magics["%%stepscope"]("", "1 / 0")


def test_a_wrong_option_is_an_error_of_the_cell(shell: Shell) -> None:
    with pytest.raises(StepscopeError, match="unrecognized arguments: --bogus; usage: %%stepscope"):
        shell.magics["%%stepscope"]("--bogus", "")
