"""The files that are open."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from serving import TRACE

from stepscope.errors import ServeError
from stepscope.faces.page.open_files import Workbench, trace_ids
from stepscope.trace.trace import Trace


def test_a_files_id_is_its_name_and_differs_from_the_others(tmp_path: Path) -> None:
    names = ["run.json.gz", "a/run.pt.trace.json", "a b/ü.stepscope", "a/.json", "a/ranks/"]
    paths = [tmp_path / name for name in names]
    for path, name in zip(paths, names, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text("")
    assert list(Workbench(paths).files) == ["run", "run-2", "trace", "trace-2", "ranks"]


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ServeError, match="no such file or folder"):
        Workbench([tmp_path / "none.json"])


def test_until_it_is_read_a_trace_answers_nothing(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(TRACE)
    workbench = Workbench([tmp_path / "run.json"])
    file = workbench["run"]
    assert (file.state, file.progress) == ("loading", 0.0)
    assert workbench.is_loading
    with pytest.raises(ServeError, match=r"run\.json: waiting") as refusal:
        _ = file.view
    assert refusal.value.status == 409


def test_reading_tells_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(TRACE)
    workbench = Workbench([tmp_path / "run.json"])
    workbench.load(cache=False).join()
    assert not workbench.is_loading
    assert workbench["run"].entry().state == "ready"
    assert workbench["run"].view.start == "s1.0"


def test_a_trace_without_steps_says_so_once_it_is_read(tmp_path: Path) -> None:
    """So that the page does not offer to compare with it."""
    (tmp_path / "run.json").write_text(TRACE)
    (tmp_path / "memory.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": []}))
    workbench = Workbench([tmp_path / "run.json", tmp_path / "memory.pickle"])
    assert [file.entry().has_steps for file in workbench.files.values()] == [True, True]
    workbench.load(cache=False).join()
    assert [file.state for file in workbench.files.values()] == ["ready", "ready"]
    assert [file.entry().has_steps for file in workbench.files.values()] == [True, False]


def test_a_file_that_cannot_be_read_does_not_stop_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "run.json").write_text(TRACE)
    workbench = Workbench([tmp_path / "bad.json", tmp_path / "run.json"])
    workbench.load(cache=False).join()
    assert [file.state for file in workbench.files.values()] == ["failed", "ready"]
    assert "bad.json" in capsys.readouterr().err


def test_a_fault_of_our_own_is_told_and_leaves_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*arguments: object, **options: object) -> Trace:
        raise ZeroDivisionError("division by zero")

    (tmp_path / "run.json").write_text(TRACE)
    workbench = Workbench([tmp_path / "run.json"], fail)
    workbench.load(cache=False).join()
    assert workbench["run"].state == "failed"
    assert "internal error" in workbench["run"].message
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_the_model_tree_is_used_where_a_file_names_none(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(TRACE.replace("aten::mm", "aten::linear"))
    (tmp_path / "model.json").write_text('{"name": "fc", "class": "Linear", "children": []}')
    workbench = Workbench([tmp_path / "run.json"])
    workbench.load(tmp_path / "model.json", cache=False).join()
    assert workbench["run"].view.trace.metadata.model["class"] == "Linear"


def test_thousands_of_files_of_one_name_are_numbered_at_once() -> None:
    """As a job's are that has a folder for each rank; to look through all before each took the cube."""
    names = trace_ids(["trace.json"] * 20_000)
    assert (names[:3], names[-1]) == (["trace", "trace-2", "trace-3"], "trace-20000")
    assert trace_ids(["a", "a-2", "a", "a-2"]) == ["a", "a-2", "a-3", "a-2-2"]
