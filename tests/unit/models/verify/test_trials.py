"""What is said where a run's processes cannot be started."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from stepscope.errors import CaptureError
from stepscope.models.verify.trials import TrialRun, execute
from stepscope.record.script_runner import Program


@pytest.mark.parametrize(
    ("prefix", "message"),
    [
        ("no-such-program {rank}", "cannot run no-such-program: No such file or directory"),
        ("env 'X=1", "is not a command line: No closing quotation"),
    ],
)
def test_a_prefix_that_is_no_command_is_told(prefix: str, message: str) -> None:
    run = TrialRun(Program("train.py"), 1, 1, prefix=prefix)
    with pytest.raises(CaptureError, match=message):
        execute(run, lambda label, line: None)


@pytest.mark.main
def test_a_script_without_torch_is_told(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('hi')")
    for capture in (None, tmp_path / "x.stepscope"):
        run = TrialRun(Program(str(script)), 1, 1, capture=capture)
        with pytest.raises(CaptureError, match="does not train with PyTorch: it never imports torch"):
            execute(run, lambda label, line: None)


@pytest.mark.main
def test_a_script_that_only_infers_is_told(tmp_path: Path) -> None:
    script = tmp_path / "infer.py"
    script.write_text(
        "import torch\nmodel, x = torch.nn.Linear(2, 2), torch.ones(1, 2)\nfor _ in range(9):\n    model(x)\n"
    )
    for capture in (None, tmp_path / "x.stepscope"):
        run = TrialRun(Program(str(script)), 1, 1, capture=capture)
        with pytest.raises(CaptureError, match="no optimizer made a step in its process"):
            execute(run, lambda label, line: None)


def test_the_first_process_is_ended_where_the_second_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def once(*words: object, **rest: object) -> object:
        if started:
            raise FileNotFoundError(2, "No such file or directory")
        started.append(start(["sleep", "60"], stdout=subprocess.PIPE, text=True))
        return started[0]

    monkeypatch.setattr("stepscope.models.verify.trials.subprocess.Popen", once)
    with pytest.raises(CaptureError, match="cannot run"):
        execute(TrialRun(Program("train.py"), 1, 1, processes=2), lambda label, line: None)
    assert started[0].returncode == -9
