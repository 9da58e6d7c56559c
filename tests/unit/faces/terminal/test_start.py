"""What a process of its own loads, and how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.main
HEAVY = ("numpy", "pyarrow", "duckdb", "torch", "rich", "pandas", "msgspec")
MAIN = "from stepscope.faces.terminal import main; main()"


def loaded(code: str) -> set[str]:
    """Which of the heavy packages are loaded after some code has run."""
    script = f"import sys\n{code}\nprint(*(n for n in {HEAVY} if n in sys.modules), file=sys.stderr)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import stepscope",
        "import stepscope; stepscope.profile, stepscope.trace_handler, stepscope.StepscopeError",
        "from stepscope.faces.terminal.run import run",
        "from stepscope.faces.terminal.query import query",
        "from stepscope.faces.terminal.commands import stepscope as s; s(['--help'], standalone_mode=False)",
    ],
)
def test_nothing_heavy_is_loaded_for(code: str) -> None:
    assert loaded(code) == set()


@pytest.mark.parametrize("command", ["report", "view"])
def test_looking_at_a_file_loads_no_recorder(command: str) -> None:
    code = f"import sys, stepscope.faces.terminal.{command}; sys.exit('stepscope.record' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_opening_from_the_cache_loads_numpy_and_arrow_alone(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]))
    code = f"import stepscope; stepscope.open({str(path)!r})"
    loaded(code)
    assert loaded(code) == {"numpy", "pyarrow"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    import stepscope

    with pytest.raises(AttributeError, match="has no attribute 'opne'"):
        stepscope.opne  # noqa: B018
    assert {"open", "profile", "Trace"} <= set(dir(stepscope))


def test_a_reader_who_has_had_enough_is_no_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}]))
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN, "query", str(path), "select range from range(200000)"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    errors = process.stderr.read()
    process.stderr.close()
    assert (process.wait(), errors) == (141, "")


@pytest.fixture
def odd_name(tmp_path: Path) -> str:
    """A trace whose event has a name that few terminals can show."""
    path = tmp_path / "trace.json"
    event = {"ph": "X", "name": "Größe 😀", "pid": 1, "tid": 1, "ts": 1, "dur": 2}
    path.write_text(json.dumps([event]))
    return str(path)


def test_letters_that_a_terminal_lacks_are_question_marks(odd_name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", MAIN, "query", odd_name, "select name from events"],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, b"name\n-------\nGr\xf6\xdfe ?\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize(
    "words", [["query", "{}", "select name from events"], ["--help"], ["--version"], ["cache"]]
)
def test_a_full_disk_is_one_line(odd_name: str, words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *(odd_name if word == "{}" else word for word in words)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    line = "Error: the output cannot be written: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, line)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device")
@pytest.mark.parametrize("words", [["cache"], ["report", "missing.json"]])
def test_an_error_that_cannot_be_written_either_keeps_its_exit_code(words: list[str]) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([sys.executable, "-c", MAIN, *words], stdout=full, stderr=full, check=False)
    assert done.returncode == 2


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such shell")
def test_a_closed_output_is_no_error(odd_name: str) -> None:
    words = [sys.executable, "-c", MAIN, "query", odd_name, "select name from events"]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *words], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
