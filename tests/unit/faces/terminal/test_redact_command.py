"""`stepscope redact`: none of 1,000 planted names is left in any byte, and the numbers are the same."""

from __future__ import annotations

import base64
import gzip
import json
import pickle
import random
import re
import stat
import string
import sys
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from stepscope.base.watch_format import TIMES
from stepscope.faces.terminal.commands import stepscope
from stepscope.record.watch.watch_file import WatchFile

JOB = Path(__file__).parents[3] / "fuzz/corpus/commands/job.json"
NAMES = 1000


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(stepscope, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "home"
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: folder / name)
    return folder


class Planted:
    """Names that no file of anyone has, all given before one comes again."""

    def __init__(self, seed: int) -> None:
        chance = random.Random(seed)
        self.names = {"".join(chance.choices(string.ascii_lowercase, k=10)) for _ in range(NAMES)}
        self._next = cycle(sorted(self.names))

    def __call__(self) -> str:
        return next(self._next)

    def path(self) -> str:
        return f"/home/{self()}/{self()}/{self()}.py"


def event(name: str, category: str, start: float, length: float, **arguments: Any) -> dict[str, Any]:
    place = {"pid": 1, "tid": 1, "ts": start, "dur": length, "args": arguments}
    return {"ph": "X", "cat": category, "name": name, **place}


def step(number: int, plant: Planted) -> Iterator[dict[str, Any]]:
    """A step with names in each place where PyTorch writes those of users."""
    start = 1000.0 * number
    user, frame = "user_annotation", "python_function"
    yield event(
        f"ProfilerStep#{number}", user, start, 900, **{plant(): plant(), "list": [{plant(): plant.path()}]}
    )
    yield event(f"{plant.path()}({number}): {plant()}", frame, start + 1, 800)
    yield event(f"nn.Module: {plant().capitalize()}_0", frame, start + 2, 700)
    yield event(f"<built-in method {plant()} of {plant()} object at 0x7f3a>", frame, start + 3, 600)
    yield event(f"{plant()}.{plant()}: {plant()}@{plant()}.com", user, start + 4, 500)
    yield event(f"stepscope.module: {plant()}.3.{plant()}", user, start + 5, 400)
    shapes = {
        "Input Dims": [[8, 16], [16, 4]],
        "Input type": ["float", plant()],
        "Concrete Inputs": [plant()],
    }
    yield event("aten::mm", "cpu_op", start + 10, 300, **shapes)
    yield event(f"{plant().capitalize()}Backward", "cpu_op", start + 320, 50)


def capture(path: Path, plant: Planted) -> Path:
    """A capture whose every free text has planted names."""
    children = [
        {"name": plant(), "path": plant(), "class": f"{plant()}.{plant()}", "line": 3, "file": plant.path()}
        for _ in range(20)
    ]
    root = {"name": plant(), "path": "", "class": f"{plant()}.{plant()}", "file": plant.path(), "line": 1}
    manifest = {
        "format": "stepscope capture", "version": 1, "framework": "pytorch", "outcome": "interrupted",
        "message": f"no module named {plant()}", "host": plant(), "cwd": f"/home/{plant()}/{plant()}",
        "command": ["python", plant.path(), f"--{plant()}={plant()}"], "warnings": [f"in {plant.path()}"],
        "devices": [{"type": "cuda", "index": 0, "name": "NVIDIA H200", "uuid": plant()}],
        "environment": {plant().upper(): plant()}, "loaders": [{"workers": 2, "dataset": plant()}],
    }  # fmt: skip
    events = [part for number in range(45) for part in step(number, plant)]
    trace = {"schemaVersion": 1, "traceName": plant.path(), plant(): plant(), "traceEvents": events}
    members = {"manifest.json": manifest, "modules.json": {"roots": [{**root, "children": children}]}}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in {**members, "trace.json": trace}.items():
            archive.writestr(name, json.dumps(content))
    return path


def left(path: Path, names: set[str]) -> set[str]:
    """The names in a file, or in what is compressed in it."""
    with zipfile.ZipFile(path) as archive:
        parts = [path.read_bytes(), *map(archive.read, archive.namelist())]
    text = b"\n".join(parts).lower().decode("latin-1")
    return {name for name in names if name in text}


def test_no_planted_name_is_left(tmp_path: Path) -> None:
    plant = Planted(0)
    file = capture(tmp_path / f"{plant()}.stepscope", plant)
    assert len(left(file, plant.names)) == NAMES
    result = run("redact", file, tmp_path / "shared.stepscope")
    assert result.exit_code == 0, result.output
    assert left(tmp_path / "shared.stepscope", plant.names) == set()


@pytest.mark.main
def test_no_planted_name_is_left_in_a_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page"
    page.mkdir()
    (page / "index.html").write_text("<html><head></head><body></body></html>")
    (page / "index.js").write_text("")
    monkeypatch.setattr("stepscope.faces.page.bundle.FOLDER", page)
    plant = Planted(0)
    file = capture(tmp_path / f"{plant()}.stepscope", plant)
    other = capture(tmp_path / f"{plant()}.stepscope", plant)

    def left_in_page(*options: str | Path) -> set[str]:
        out = tmp_path / "report.html"
        result = run("report", file, "--html", out, "--compare", other, *options)
        assert result.exit_code == 0, result.output
        html = out.read_text()
        (data,) = re.findall(r'id="stepscope-data">([^<]+)<', html)
        text = (html + gzip.decompress(base64.b64decode(data)).decode()).lower()
        return {name for name in plant.names if name in text}

    assert len(left_in_page()) > NAMES / 4
    assert left_in_page("--redact") == set()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--redact"], "--redact needs --html; otherwise use: stepscope redact"),
        (["--whatif", "amp"], "--whatif needs --html; otherwise use: stepscope whatif"),
        (["--source-root", "."], "--source-root needs --html; otherwise use: stepscope view"),
        (["--html", "out.html", "--redact", "--source-root", "."], "--redact cannot hide"),
    ],
)
def test_options_of_the_page_alone_are_refused(options: list[str], reason: str, tmp_path: Path) -> None:
    result = run("report", capture(tmp_path / "a.stepscope", Planted(0)), *options)
    assert result.exit_code == 2
    assert reason in result.output


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, int | float):
        yield value


def answer(*arguments: str | Path) -> Counter[float]:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return Counter(numbers(json.loads(result.output)))


@pytest.mark.parametrize("command", ["report", "analyze", "contexts", "memory", "diff", "whatif"])
def test_numbers_are_the_same(command: str, tmp_path: Path) -> None:
    files = [JOB] if command == "memory" else [JOB, capture(tmp_path / "run.stepscope", Planted(7))]
    outs = [tmp_path / f"shared{row}.stepscope" for row in range(len(files))]
    for file, out in zip(files, outs, strict=True):
        assert run("redact", file, out).exit_code == 0
    if command == "diff":
        assert answer("diff", *files) == answer("diff", *outs)
        return
    more = ["--all"] if command == "whatif" else []
    for file, out in zip(files, outs, strict=True):
        assert answer(command, file, *more) == answer(command, out, *more)


def test_a_folder_of_ranks_becomes_one(tmp_path: Path) -> None:
    folder = tmp_path / "acme_job"
    folder.mkdir()
    for rank in range(2):
        job = json.loads(JOB.read_bytes())
        job["distributedInfo"] = {"rank": rank, "world_size": 2}
        (folder / f"acme{rank}.json").write_text(json.dumps(job))
    assert run("redact", folder, tmp_path / "shared").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == [
        "rank0.stepscope",
        "rank1.stepscope",
    ]
    assert answer("ranks", folder) == answer("ranks", tmp_path / "shared")


def test_one_key_of_the_user_keeps_two_files_comparable(tmp_path: Path, home: Path) -> None:
    outs = [tmp_path / f"{name}.stepscope" for name in ("a", "b", "c")]
    for out in outs[:2]:
        run("redact", JOB, out)
    (tmp_path / "other.key").write_bytes(b"another secret")
    run("redact", JOB, outs[2], "--key", tmp_path / "other.key")
    first, second, other = (run("report", out, "--json", "--no-cache").output for out in outs)
    assert first.replace("a.stepscope", "b.stepscope") == second
    assert first.replace("a.stepscope", "c.stepscope") != other
    if sys.platform != "win32":
        assert stat.S_IMODE((home / "stepscope/redaction.key").stat().st_mode) == 0o600


def test_it_says_what_is_still_revealed(tmp_path: Path) -> None:
    output = run("redact", JOB, tmp_path / "shared.stepscope").output
    assert "kernels, operators and calls of libraries" in output
    assert "files of public packages" in output


@pytest.mark.parametrize(
    ("out", "reason"),
    [("shared.json", "name it shared.stepscope"), ("same.stepscope", "is the file to redact")],
)
def test_a_wrong_name_is_refused(out: str, reason: str, tmp_path: Path) -> None:
    file = capture(tmp_path / "same.stepscope", Planted(1))
    before = file.read_bytes()
    result = run("redact", file, tmp_path / out)
    assert (result.exit_code, file.read_bytes()) == (2, before)
    assert reason in result.output


def test_facts_that_need_the_names_are_not_derived_again(tmp_path: Path) -> None:
    out = tmp_path / "shared.stepscope"
    run("redact", JOB, out)
    result = run("report", out, "--as-recorded")
    assert "give --as-recorded to stepscope redact instead" in result.output


# -- what is no trace


def watched(path: Path, plant: Planted) -> None:
    """A watched run with names in its command, its places, its failure and its sampled lines."""
    places = [
        {
            "kind": "checkpoint",
            "function": plant(),
            "file": plant.path(),
            "line": row,
            "count": 1,
            "total_ns": 9,
        }
        for row in range(100)
    ]
    file = WatchFile(path)
    file.put_text({"begun_unix_ns": 5, "created_unix_ns": 1, "places": [], "command": plant()})
    run = {"command": f"{plant.path()} --{plant()}", "out_of_memory": f"512 MB of {plant()}", "rank": 1}
    file.put_text({"begun_unix_ns": 5, "created_unix_ns": 1, "places": places, "outcome": "complete", **run})
    lines = [[f"{plant().title()}.{plant()}", plant.path(), row] for row in range(200)]
    file.put_samples(lines, [(row, row, 0) for row in range(200)])
    for row in range(20):
        file.add_step((row, row * 100, 90, *(1.0 for _ in TIMES)))
    file.flush()


def dump(path: Path, plant: Planted, stuck: bool = False) -> None:
    """What the flight recorder of a rank leaves, with names in stacks, groups and what nothing reads."""
    group = {plant(): {"name": plant(), "desc": plant(), "ranks": "[0, 1]"} for _ in range(50)}
    entries = [
        {
            "record_id": row,
            "process_group": (next(iter(group)), plant()),
            "collective_seq_id": row + 1,
            "profiling_name": "nccl:reduce_scatter",
            "input_sizes": [[8]],
            "input_dtypes": ["Float"],
            "state": "scheduled" if stuck and row == 119 else "completed",
            "time_created_ns": 1_790_000_000_000_000_000 + row,
            "frames": [{"name": plant(), "filename": plant.path(), "line": row}],
        }
        for row in range(120 - stuck)
    ]
    everything = {"version": "2.10", "pg_config": group, "entries": entries, "host": plant()}
    path.write_bytes(pickle.dumps(everything))


@pytest.mark.parametrize("write", [watched, dump])
def test_no_name_is_left_in_what_is_no_trace(write: Callable[[Path, Planted], None], tmp_path: Path) -> None:
    plant, path, out = Planted(0), tmp_path / "job_0", tmp_path / "shared_0"
    write(path, plant)
    assert len(named(path, plant)) > NAMES / 2
    assert run("redact", path, out).exit_code == 0
    assert not named(out, plant)


def named(path: Path, plant: Planted) -> set[str]:
    """The names in a file, most of which may be zeros."""
    content = b" ".join(path.read_bytes().lower().replace(b"\0" * 64, b"").split(b"\0"))
    return {name for name in plant.names if name.encode() in content}


def test_a_watched_run_has_the_same_bill(tmp_path: Path) -> None:
    watched(tmp_path / "train.watch", Planted(0))
    assert run("redact", tmp_path / "train.watch", tmp_path / "shared.watch").exit_code == 0
    assert answer("report", tmp_path / "train.watch") == answer("report", tmp_path / "shared.watch")


def test_the_recordings_beside_a_watched_run_are_redacted_too(tmp_path: Path) -> None:
    folder, out = tmp_path / "job", tmp_path / "shared"
    folder.mkdir()
    watched(folder / "train.watch", Planted(0))
    capture(folder / "train-step9.stepscope", Planted(0))
    assert run("redact", folder, out).exit_code == 0
    assert sorted(path.suffix for path in out.iterdir()) == [".stepscope", ".watch"]


def test_dumps_of_a_job_say_the_same(tmp_path: Path) -> None:
    folder, out = tmp_path / "job", tmp_path / "shared"
    folder.mkdir()
    for rank in range(2):
        dump(folder / f"acme_{rank}", Planted(0), stuck=rank == 1)
    assert run("redact", folder, out).exit_code == 0
    assert sorted(path.name for path in out.iterdir()) == ["rank0.json", "rank1.json"]
    assert answer("ranks", folder) == answer("ranks", out)


def test_an_empty_key_is_refused_since_names_could_be_looked_up(tmp_path: Path) -> None:
    (tmp_path / "empty.key").touch()
    outcome = CliRunner().invoke(
        stepscope, ["redact", str(JOB), str(tmp_path / "a.stepscope"), "--key", str(tmp_path / "empty.key")]
    )
    assert (outcome.exit_code, "is empty, so that anyone could look names up" in outcome.output) == (2, True)
    assert not (tmp_path / "a.stepscope").exists()
