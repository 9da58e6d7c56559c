"""What `stepscope run` says where nothing was recorded: one line that helps."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from stepscope.record.manifest import RunResult
from stepscope.record.run import _next

NOTHING = RunResult("no_steps", "the run ended; no optimizer stepped in this process")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As if the program had imported nothing that matters."""
    for name in ("torch", "jax", "torch.distributed.run", "accelerate.commands.launch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return monkeypatch


def said(command: str = "report", result: RunResult = NOTHING) -> str:
    (line,) = _next(result, command, "train.stepscope")
    return line


def test_no_optimizer_stepped(loaded: pytest.MonkeyPatch) -> None:
    loaded.setitem(sys.modules, "torch", ModuleType("torch"))
    assert "a step ends when an optimizer of torch.optim has stepped" in said()
    assert "or a model is called again; stepscope run --contexts needs neither" in said()


def test_the_launcher_of_other_processes_was_run(loaded: pytest.MonkeyPatch) -> None:
    loaded.setitem(sys.modules, "torch", ModuleType("torch"))
    loaded.setitem(sys.modules, "torch.distributed.run", ModuleType("run"))
    assert "torchrun --no-python --nproc-per-node 2 stepscope run script.py" in said()


def test_another_framework(loaded: pytest.MonkeyPatch) -> None:
    assert said() == (
        "no step was recorded: stepscope run records PyTorch and JAX in the process that it starts"
    )
    loaded.setitem(sys.modules, "jax", ModuleType("jax"))
    assert "stepscope report FOLDER opens what jax.profiler.trace(FOLDER)" in said()


def test_contexts_need_no_step() -> None:
    assert said("contexts") == "next: stepscope contexts train.stepscope"


@pytest.mark.parametrize("command", ["report", "memory"])
def test_the_command_that_shows_what_was_recorded_comes_next(command: str) -> None:
    recorded = RunResult("complete", "recorded step 5", steps_recorded=(5,))
    assert said(command, recorded) == f"next: stepscope {command} train.stepscope"
