"""What the page about a watched run gets of drawn runs: steps as columns, the bill, recordings."""

from __future__ import annotations

from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from starlette.testclient import TestClient

from stepscope.base import watch_format as layout
from stepscope.errors import ServeError
from stepscope.faces.page.app import make_app
from stepscope.faces.page.guard import Token
from stepscope.faces.page.open_files import Workbench
from stepscope.faces.page.watch_answer import StepColumns, WatchedJob
from stepscope.faces.terminal.commands import stepscope as command
from stepscope.record.watch.watch_file import WatchFile

S = 1_000_000_000
STEPS = 200
LOADING = range(120, 150)


def add_steps(file: WatchFile, first: int, end: int, loading_ms: float = 0.0, every_ms: float = 20.0) -> None:
    """Steps of about 20 ms, a quarter of it backward."""
    for number in range(first, end):
        more = loading_ms if number in LOADING else 0.0
        wall = 20 + 0.01 * (number % 7) + more
        times = {"backward": 5.0, "input": 1 + more}
        begin_ns = round(number * every_ms * 1e6)
        row = (number, begin_ns, round(wall * 1e6), *(times.get(name, 0.0) for name in layout.TIMES))
        file.add_step(row)


@pytest.fixture
def run(tmp_path: Path) -> WatchFile:
    file = WatchFile(tmp_path / "train.watch")
    add_steps(file, 0, STEPS, loading_ms=30.0)
    file.put_text({"created_unix_ns": S, "begun_unix_ns": 5 * S, "command": "train.py --lr 1"})
    file.add_device((2.5e9, 1400.0, 300.0, 84.0, 64.0, 1.0))
    file.flush()
    return file


def numbers(columns: StepColumns, name: str) -> list[float]:
    """A column as numbers, shares in parts of one."""
    if name in columns.shares:
        return (np.frombuffer(b64decode(columns.shares[name]), "<u2") / 4000).tolist()
    kind = "<u2" if name == "skipped" else "<f4"
    return np.frombuffer(b64decode(getattr(columns, name)), kind).tolist()


def test_every_step_is_in_the_columns(run: WatchFile) -> None:
    columns = WatchedJob("train", [run.path]).answer().columns
    assert (columns.first, columns.count, columns.begin_ns) == (0, STEPS, 4 * S)
    assert numbers(columns, "wall_ms")[118:122] == pytest.approx([20.06, 20.0, 50.01, 50.02])
    assert numbers(columns, "input")[119:121] == pytest.approx([1 / 20, 31 / 50.01], abs=2e-4)
    assert numbers(columns, "gc") == [0] * STEPS
    assert set(columns.shares) == set(layout.OF_CPU)


def test_a_page_asks_for_the_steps_that_it_lacks(run: WatchFile) -> None:
    job = WatchedJob("train", [run.path])
    job.answer()
    add_steps(run, STEPS, STEPS + 5, every_ms=22)
    run.flush()
    later = job.answer(after=STEPS - 1)
    assert (later.steps, later.columns.first, later.columns.count) == (STEPS + 5, STEPS, 5)
    # from 199 * 20 + 20.03 ms to 200 * 22 ms; steps of 20.04 to 20.06 ms, then one of 20 ms
    assert numbers(later.columns, "gap_ms") == pytest.approx([399.97, 1.96, 1.95, 1.94, 2.0])
    assert numbers(later.columns, "skipped") == [0] * 5
    assert job.answer(after=STEPS + 4).columns.count == 0


def test_missing_steps_are_counted(run: WatchFile) -> None:
    with run.path.open("r+b") as file:
        file.seek(layout.STEPS_AT + 50 * layout.ROW_BYTES)
        file.write(bytes(2 * layout.ROW_BYTES))  # steps 50 and 51
    columns = WatchedJob("train", [run.path]).answer().columns
    assert columns.count == STEPS - 2
    assert {at: skip for at, skip in enumerate(numbers(columns, "skipped")) if skip} == {50: 2}


def test_the_bill_and_slow_steps_with_what_marks_them(run: WatchFile) -> None:
    answer = WatchedJob("train", [run.path]).answer()
    assert [loss.cause for loss in answer.losses] == ["start, with the first step", "waiting for data"]
    assert answer.fields["waiting for data"] == "input"
    assert answer.fields.keys() >= {"checkpoints", "evaluation", "compilation", "garbage collection"}
    (slow,) = answer.slow
    assert (slow.first, slow.last, slow.numbers) == (120, 149, [])
    assert answer.sentences == [
        "steps 120 to 149 took 2.5 times the usual, 0.9 s in all: waiting for data +30 ms"
    ]
    assert answer.device == [(6.5e9, 1400, 300, 84, 64, 1)]


def test_the_bill_of_a_growing_file_is_made_again_only_now_and_then(
    run: WatchFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes 1 s here, so it is shown for 20 s more; the end of the run is told at once."""
    now = iter([0.0, 1.0, 10.0, 30.0, 31.0, 32.0, 33.0])
    monkeypatch.setattr("stepscope.faces.page.watch_answer.time.monotonic", lambda: next(now))
    job, usual = WatchedJob("train", [run.path]), []
    for number in range(STEPS, STEPS + 4):
        usual.append(job.answer().losses[1].lost_s)
        add_steps(run, number, number + 1)
        if number == STEPS + 2:
            run.put_text({"created_unix_ns": S, "begun_unix_ns": 5 * S, "outcome": "complete"})
        run.flush()
    assert usual == pytest.approx([1.1, 1.1, 1.102, 1.103])


def test_a_run_that_has_just_begun_has_a_page(tmp_path: Path) -> None:
    file = WatchFile(tmp_path / "new.watch")
    file.put_text({"created_unix_ns": S, "begun_unix_ns": 2 * S})
    file.flush()
    answer = WatchedJob("new", [file.path]).answer()
    assert (answer.steps, answer.columns.count, answer.losses, answer.slow) == (0, 0, [], [])
    assert answer.verdict.endswith("Too few steps to judge them.")


def test_a_rank_that_is_not_there_is_refused(run: WatchFile) -> None:
    with pytest.raises(ServeError, match="no rank 3; there are 0"):
        WatchedJob("train", [run.path]).answer(3)


def test_recordings_beside_the_file_open_when_somebody_asks(run: WatchFile) -> None:
    for name in ("train-step125", "train-step9", "other-step3", "train-x"):
        (run.path.parent / f"{name}.stepscope").write_bytes(b"no recording")
    bench = Workbench([], watch=WatchedJob("train", [run.path]))
    token = Token()
    client = TestClient(make_app(bench, token, 80), base_url="http://localhost:80")
    client.headers["authorization"] = f"Bearer {token.secret}"
    answers = [client.get("/api/watch").json() for _ in range(2)]
    assert [answer["recordings"] for answer in answers] == [
        [[9, "train-step9.stepscope", "train-step9"], [125, "train-step125.stepscope", "train-step125"]]
    ] * 2
    traces = client.get("/api/traces").json()
    assert traces["whole"] == "The whole run"
    assert [entry["state"] for entry in traces["traces"]] == ["closed", "closed"]
    assert client.get("/api/watch?after=x").status_code == 400
    assert client.get("/api/watch?rank=7").json() == {"error": "no rank 7; there are 0"}


def test_the_command_writes_a_page_that_needs_nothing_else(run: WatchFile, tmp_path: Path) -> None:
    out = tmp_path / "run.html"
    result = CliRunner().invoke(command, ["report", str(run.path), "--html", str(out)])
    assert result.exit_code == 0, result.output
    html = out.read_text()
    assert 'id="stepscope-watch"' in html
    assert 'src="' not in html
