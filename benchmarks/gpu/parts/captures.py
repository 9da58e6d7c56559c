"""Captures of every model, by `stepscope run` on a plain script.

Kinds: `plain`; `memory`, with every allocation; `stacks`, with Python stacks; `loader`, where the
batches come from a data loader. A plain one that is too large to keep is taken again with one step.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.gpu.models import MODELS
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.script import STEPS, training_script
from benchmarks.gpu.setting import Setting, Unavailable


@dataclass(frozen=True)
class Kind:
    """How a kind of capture is taken.

    Attributes:
        options: of `stepscope run`.
        steps: numbers of recorded steps to try, the preferred one first.
        trained: steps that the script takes in all.
    """

    options: tuple[str, ...] = ()
    steps: tuple[int, ...] = (3, 1)
    trained: int = STEPS


KINDS = {
    "plain": Kind(trained=32),  # 20 after the recorded ones, by which their times are corrected
    "stacks": Kind(("--stack",), steps=(1,)),
    "memory": Kind(("--memory",), steps=(1,)),
    "loader": Kind(),
}
LARGEST_BYTES = 3 * 2**20
# Of 40 MiB that results may take in all; the rest is for samples, a snapshot and figures.
ALL_BYTES = 34 * 2**20
# One of images, one of words, one whose memory is all tables.
_IN_MEMORY = ("resnet50", "gpt2", "dlrm")
RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()"]
_TIMEOUT_S = 150


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Every model in every kind that it is wanted in, the plain ones first."""
    for kind in KINDS:
        for model in setting.of(MODELS):
            if wanted(model, kind, setting.quick):
                yield f"{model}/{kind}", partial(capture, model, kind, setting)


def wanted(model: str, kind: str, quick: bool) -> bool:
    """A loader only where it is slow; a quick run takes each kind once."""
    if kind == "loader":
        return model == "resnet50"
    if kind == "memory" and not quick:
        return model in _IN_MEMORY
    return not quick or model == "dlrm"


def capture(model: str, kind: str, setting: Setting) -> Json:
    """Record, pack tightly, and say what came of it; a failure leaves no file."""
    folder = setting.out / "captures"
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / f"{model}_{kind}.py"
    text = training_script(model, setting, kind == "loader", KINDS[kind].trained)
    script.write_text(text)
    path = folder / f"{model}.{kind}.stepscope"
    for steps in KINDS[kind].steps:
        command = ["--steps", str(steps), *KINDS[kind].options, "-o", str(path), str(script)]
        said = _record(command, path, _TIMEOUT_S if setting.on_gpu else None)
        recorded_bytes, kept_bytes = path.stat().st_size, pack_tightly(path)
        if kept_bytes <= LARGEST_BYTES:
            break
    keep_below(ALL_BYTES, path)
    return {
        "file": f"captures/{path.name}",
        "steps": steps,
        "bytes": kept_bytes,
        "recorded_bytes": recorded_bytes,
        "command": ["stepscope", "run", *command[:-2], path.name, script.name],
        "said": said.splitlines(),
    }


def _record(command: list[str], path: Path, timeout_s: float | None) -> str:
    try:
        done = subprocess.run([*RUN, *command], capture_output=True, text=True, timeout=timeout_s)
    except subprocess.TimeoutExpired:
        path.unlink(missing_ok=True)
        raise
    if done.returncode:
        path.unlink(missing_ok=True)
        raise RuntimeError(f"the script ended with code {done.returncode}: {last_error(done.stderr)}")
    return done.stderr


def last_error(said: str) -> str:
    """The last line of a traceback."""
    lines = [line for line in said.splitlines() if not line.startswith((" ", "stepscope"))]
    return lines[-1] if lines else "it said nothing"


def keep_below(most: int, path: Path) -> None:
    """Remove a capture that its folder has no room for.

    Raises:
        Unavailable: it was removed.
    """
    size = path.stat().st_size
    whole = sum(other.stat().st_size for other in path.parent.glob("*.stepscope"))
    if whole > most:
        path.unlink()
        raise Unavailable(f"it takes {size} bytes, and {most - whole + size} of {most} are left")


def pack_tightly(path: Path) -> int:
    """Compress a capture as well as zip can; returns its size. What it holds stays as it is."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    partial_path = path.with_suffix(".partial")
    with zipfile.ZipFile(partial_path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    partial_path.replace(path)
    return path.stat().st_size
