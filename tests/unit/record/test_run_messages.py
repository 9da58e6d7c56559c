"""What `stepscope run` says where nothing was recorded: one line that helps."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from stepscope.record.manifest import Run, RunResult
from stepscope.record.options import RecordOptions
from stepscope.record.run import _next, _RecordedRun
from stepscope.record.session import Ending, Session
from stepscope.record.watch.watch_session import WatchSession

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


def test_a_framework_that_cannot_be_watched_is_imported_all_the_same(
    loaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    session = Session(Run(["train.py"], RecordOptions()), tmp_path / "train.stepscope")
    loaded.setitem(sys.modules, "torch", ModuleType("torch"))
    loaded.setattr(session, "attach", lambda: sys.modules["torch"].optim)
    _RecordedRun(session, reports=True).attach()
    assert session.failure == "cannot record: AttributeError: module 'torch' has no attribute 'optim'"


def test_what_was_watched_is_said_also_where_the_folder_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "gone").mkdir()
    monkeypatch.chdir(folder)
    session = WatchSession.of_program("train", ["train.py"], tmp_path / "train.watch")
    monkeypatch.setattr(session, "_log", SimpleNamespace(steps=3))
    folder.rmdir()
    assert next(session.closing_lines()) == f"watched 3 steps; wrote {tmp_path}/train.watch"


def test_what_cannot_be_described_does_not_reach_the_program(
    loaded: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As where a program allows no sockets."""

    def forbidden() -> str:
        raise RuntimeError("no network in tests")

    session = Session(Run(["train.py"], RecordOptions()), tmp_path / "train.stepscope")
    loaded.setattr("socket.gethostname", forbidden)
    session.finish(Ending())
    assert session.failure == f"cannot write {tmp_path}/train.stepscope: no network in tests"
