"""Commands that write, with checks of the files that they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

import msgspec
from warm_python import run_warm

from stepscope.facts.annotate import annotate
from stepscope.read import read

PATIENCE_S = 300
_LIMITED = """
import os, resource, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
os.execv(sys.argv[2], sys.argv[2:])
"""
# What it imports is frozen: else garbage is looked for in all of it, which takes 1.5 s a process.
TRAIN = """
import gc, torch
gc.freeze()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.freeze()
for step in range(14):
    model(torch.ones(8, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
HANDLED = """
import gc, stepscope, torch
gc.freeze()
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
gc.freeze()
handler = stepscope.trace_handler(model, path="handled.stepscope", overwrite=True)
with torch.profiler.profile(on_trace_ready=handler) as profiler:
    for step in range(6):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        profiler.step()
"""


def is_capture(path: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        if "trace.json" not in archive.namelist():
            return  # the run was interrupted before a step
    trace = read(path)
    annotate(trace, trace.metadata.model or None)


def is_page(path: Path) -> None:
    assert path.read_text("utf-8").rstrip().endswith("</html>")


def is_picture(path: Path) -> None:
    ElementTree.parse(path)


def is_sketch(path: Path) -> None:
    msgspec.msgpack.decode(path.read_bytes())


def is_table(path: Path) -> None:
    from pyarrow import parquet

    parquet.read_table(path)


def is_text(path: Path) -> None:
    assert path.read_text("utf-8").endswith("\n")


@dataclass(frozen=True)
class Command:
    """A command that writes, and the check of each file that it may leave, by its pattern."""

    words: tuple[str, ...]
    checks: dict[str, Callable[[Path], None]] = field(default_factory=dict)
    python: tuple[str, ...] = ("-m", "stepscope")


_CAPTURE = {"run.stepscope": is_capture}
_TO = ("-o", "run.stepscope", "--overwrite", "train.py")
_PAGE = {"page.html": is_page}
COMMANDS = {
    "run": Command(("run", *_TO), _CAPTURE),
    "run --memory": Command(("run", "--memory", *_TO), _CAPTURE),
    "run --contexts": Command(("run", "--contexts", *_TO), _CAPTURE),
    "trace_handler": Command(("handled.py",), {"handled.stepscope": is_capture}, python=()),
    "report --html": Command(("report", "trace.json", "--html", "page.html"), _PAGE),
    "report --svg": Command(("report", "trace.json", "--svg", "page.svg"), {"page.svg": is_picture}),
    "contexts -o": Command(
        ("contexts", "trace.json", "--format", "folded", "-o", "page.txt"), {"page.txt": is_text}
    ),
    "ranks -o": Command(
        ("ranks", "job", "-o", "set", "--tables"),
        {"set/rank=*/*.msgpack": is_sketch, "set/rank=*/*.parquet": is_table},
    ),
    "ranks --html": Command(("ranks", "job", "--html", "page.html"), _PAGE),
    "batch --html": Command(("batch", "--quick", "--at", "8", "--html", "page.html", "sized.py"), _PAGE),
    "report": Command(("report", "trace.json")),
    "analyze": Command(("analyze", "trace.json")),
    "whatif --all": Command(("whatif", "trace.json", "--all")),
}


def write_inputs(folder: Path) -> None:
    """What the commands read."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "handled.py").write_text(HANDLED)
    (folder / "sized.py").write_text("batch_size = 8\n" + TRAIN.replace("(8, 64)", "(batch_size, 64)"))
    (folder / "trace.json").write_text(json.dumps(events(2000)))
    (folder / "job").mkdir()
    for rank in range(4):
        job = {"distributedInfo": {"rank": rank, "world_size": 4}, "traceEvents": events(300)}
        (folder / f"job/rank{rank}.json").write_text(json.dumps(job))


def events(count: int) -> list[dict[str, object]]:
    def one(name: str, start: float, length: float, category: str) -> dict[str, object]:
        return {"ph": "X", "cat": category, "pid": 1, "tid": 1, "name": name, "ts": start, "dur": length}

    steps = [one(f"ProfilerStep#{n}", n * count, count, "user_annotation") for n in range(5)]
    names = ("aten::mm", "aten::add_", "aten::relu")
    return steps + [one(names[n % 3], n * 5, 4, "cpu_op") for n in range(count)]


def start(command: Command, folder: Path, most_bytes: int | None = None) -> subprocess.Popen[bytes]:
    """Start a command, with a cache and a folder for temporary files of its own.

    Args:
        command: which.
        folder: where.
        most_bytes: no file may become larger, as on a disk that is full from there on.
    """
    (folder / "temporary").mkdir(exist_ok=True)
    # Python leaves half of a compiled module where it cannot write the rest
    bytecode = {} if most_bytes is None else {"PYTHONDONTWRITEBYTECODE": "1"}
    limit = () if most_bytes is None else ("-c", _LIMITED, str(most_bytes), sys.executable)
    return subprocess.Popen(
        [sys.executable, *limit, *command.python, *command.words],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env={**environment(folder), **bytecode},
    )


def environment(folder: Path) -> dict[str, str]:
    """A cache and a folder for temporary files of its own."""
    places = {"STEPSCOPE_CACHE": folder / "cache", "TMPDIR": folder / "temporary"}
    return {**os.environ, **{name: str(place) for name, place in places.items()}}


def finish(command: Command, folder: Path, most_bytes: int | None = None) -> tuple[int, bytes]:
    """Run a command to its end; its exit code, and what it printed."""
    process = start(command, folder, most_bytes)
    output, _ = process.communicate(timeout=PATIENCE_S)
    return process.returncode, output


def finish_in_fork(command: Command, folder: Path) -> tuple[int, bytes]:
    """The same in a fork of a process that has PyTorch imported."""
    program = ("-c", "from stepscope.faces.terminal import main; main()") if command.python else ()
    words = [sys.executable, *program, *command.words]
    done = run_warm(words, folder, PATIENCE_S, environment(folder))
    return done.returncode, (done.stdout + done.stderr).encode()


def files_in(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of each file, by its path in a folder."""
    found = {}
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            try:
                state = path.stat()
            except FileNotFoundError:
                continue
            found[str(path.relative_to(folder))] = (state.st_size, state.st_mtime_ns)
    return found


def check_files(command: Command, folder: Path, is_over: bool) -> None:
    """Every file can be read, and none of an earlier run is missing."""
    for pattern, check in command.checks.items():
        paths = [path for path in folder.glob(pattern) if not path.name.startswith(".")]
        assert paths or not is_over, f"{pattern} of an earlier run is gone"
        for path in paths:
            check(path)


def strangers(command: Command, folder: Path, inputs: Path) -> list[str]:
    """Files that are neither inputs nor outputs; the cache keeps its own for an hour."""
    outputs = {
        str(path.relative_to(folder))
        for pattern in command.checks
        for path in folder.glob(pattern)
        if not path.name.startswith(".")
    }
    known = set(files_in(inputs)) | outputs
    own = ("cache/", "__pycache__/", "temporary/")
    return [name for name in files_in(folder) if name not in known and not name.startswith(own)]
