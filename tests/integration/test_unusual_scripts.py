"""Scripts that use the interpreter in unusual ways do the same under `stepscope run` as without.

Each is a file of `unusual_scripts/`. Output, exit code and written files with their permissions
must be identical, and stderr but for stepscope's own lines. A script may begin with such lines:

    # flags: -O -X dev          options of Python
    # environment: TZ=UTC A=B   variables set
    # input: continue\n         what it reads
    # needs: gevent             a package without which it is skipped
    # starts: warm              PyTorch is imported before it starts: it concerns what training does
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from warm_python import run_warm

SCRIPTS = sorted((Path(__file__).parent / "unusual_scripts").glob("*.py"))
MODES = {"run": ["run"], "run --contexts": ["run", "--contexts"], "watch": ["watch"]}
CASES = [(script, mode) for script in SCRIPTS for mode in MODES if mode != "watch" or "torch" in script.stem]

# What is known to differ, and why.
_FRAMES = "frames of stepscope are below those of the script, as with `python -m`"
DIFFER = {
    "recursion_uncaught": (_FRAMES, set(MODES)),
    "asyncio_origin": (_FRAMES, set(MODES)),
    "torch_anomaly": (_FRAMES, set(MODES)),
    "torch_warning_levels": ("a frame is between `backward` and its engine", {"run", "watch"}),
    "null_bytes": ("compile() names no file in this one error", set(MODES)),
    "torch_model_dies": ("it counts callbacks of gc, of which `watch` has two", {"watch"}),
}


@dataclass(frozen=True)
class Outcome:
    """What a script did."""

    code: int
    out: str
    err: str
    files: dict[str, tuple[bytes, int]]


@dataclass(frozen=True)
class Settings:
    """How a script wants to be run."""

    flags: list[str]
    environment: dict[str, str]
    typed: bytes
    needs: list[str]
    is_warm: bool

    @classmethod
    def of(cls, script: Path) -> "Settings":
        lines = re.findall(r"^# (flags|environment|input|needs|starts): (.*)", script.read_text(), re.M)
        found = dict(lines)
        return cls(
            found.get("flags", "").split(),
            dict(word.split("=", 1) for word in found.get("environment", "").split()),
            found.get("input", "typed in").replace("\\n", "\n").encode(),
            found.get("needs", "").split(),
            found.get("starts") == "warm",
        )


def outcome(stepscope: list[str], folder: Path, script: Path) -> Outcome:
    """Run a script in a folder made afresh, under the words of a command or without."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copyfile(script, folder / "script.py")
    settings = Settings.of(script)
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **settings.environment}
    run = run_in_fork if settings.is_warm else run_in_process
    done = run(stepscope, folder, settings, environment)
    files = {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mode)
        for path in folder.rglob("*")
        if path.is_file() and path.suffix not in (".stepscope", ".watch")
    }
    return Outcome(done.returncode, shown(done.stdout), own_lines_removed(shown(done.stderr)), files)


Done = subprocess.CompletedProcess[bytes]


def run_in_process(
    stepscope: list[str], folder: Path, settings: Settings, environment: dict[str, str]
) -> Done:
    words = ["-m", "stepscope", *stepscope] if stepscope else []
    return subprocess.run(
        [sys.executable, *settings.flags, *words, "script.py"],
        cwd=folder,
        capture_output=True,
        timeout=300,
        check=False,
        input=settings.typed,
        env=environment,
    )


def run_in_fork(stepscope: list[str], folder: Path, settings: Settings, environment: dict[str, str]) -> Done:
    assert not settings.flags
    words = ["-c", "from stepscope.faces.terminal import main; main()", *stepscope] if stepscope else []
    done = run_warm([sys.executable, *words, "script.py"], folder, env=environment)
    return Done(done.args, done.returncode, done.stdout.encode(), done.stderr.encode())


def shown(output: bytes) -> str:
    """Without what differs between any two runs: addresses, processes, a line that Kineto logs."""
    text = output.decode("utf-8", "surrogateescape")
    return re.sub(r"0x[0-9a-f]{6,}|\(pid=\d+\)|^USDT:.*\n", "", text, flags=re.M)


def own_lines_removed(stderr: str) -> str:
    """A line of ours may follow one that the script did not end."""
    return "".join(line.partition("stepscope: ")[0] for line in stderr.splitlines(True))


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where scripts run: in the same place with and without, as some print it."""
    return tmp_path_factory.mktemp("unusual") / "work"


@cache
def alone(script: Path, folder: Path) -> Outcome:
    """What a script does without stepscope, run once for both commands."""
    return outcome([], folder, script)


# Both commands of a script follow each other, so that mostly one process tests them.
@pytest.mark.parametrize(("script", "mode"), CASES, ids=lambda case: getattr(case, "stem", case))
def test_a_script_does_the_same(
    script: Path, mode: str, folder: Path, request: pytest.FixtureRequest
) -> None:
    missing = [name for name in Settings.of(script).needs if not importlib.util.find_spec(name)]
    if missing:
        pytest.skip(f"{missing[0]} is not installed")
    reason, modes = DIFFER.get(script.stem, ("", set()))
    if mode in modes:
        request.applymarker(pytest.mark.xfail(reason=reason, strict=True))
    plain, recorded = alone(script, folder), outcome(MODES[mode], folder, script)
    assert recorded.code == plain.code, recorded.err
    assert recorded.out == plain.out
    assert recorded.err == plain.err
    assert recorded.files == plain.files
