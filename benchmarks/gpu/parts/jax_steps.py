"""A transformer in plain JAX: what its steps take, and a capture of three of them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.parts.captures import RUN, last_error, pack_tightly
from benchmarks.gpu.setting import Setting, Unavailable
from benchmarks.gpu.timing import spread

SCRIPT = Path(__file__).parents[1] / "jax_transformer.py"
_TIMEOUT_S = 150


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """One model: PyTorch's parts have the others."""
    yield "transformer", partial(transformer, setting)


def transformer(setting: Setting) -> Json:
    """Steps of processes that nothing watches, and the capture of another process."""
    if find_spec("jax") is None:
        raise Unavailable("jax is not installed")
    path = setting.out / "jax" / "transformer.stepscope"
    path.parent.mkdir(parents=True, exist_ok=True)
    plain = [_run([sys.executable], setting) for _ in range(2 if setting.quick else 3)]
    recorded = _run([*RUN, "--steps", "3", "-o", str(path)], setting)
    return {
        "step_ms": spread([one["step_ms"] for one in plain]),
        "after_recording_ms": recorded["step_ms"],
        "same_loss": recorded["loss"] == plain[0]["loss"],
        "platform": plain[0]["platform"],
        "file": f"jax/{path.name}",
        "bytes": pack_tightly(path),
    }


def _run(command: list[str], setting: Setting) -> Json:
    """What the script prints in its last line."""
    options = ["--quick"] if setting.quick else []
    limit_s = _TIMEOUT_S if setting.on_gpu else None
    ended = subprocess.run([*command, str(SCRIPT), *options], capture_output=True, text=True, timeout=limit_s)
    if ended.returncode:
        raise RuntimeError(f"the script ended with code {ended.returncode}: {last_error(ended.stderr)}")
    found: Json = json.loads(ended.stdout.splitlines()[-1])
    if setting.on_gpu and found["platform"] == "cpu":
        raise Unavailable("jax finds no GPU")
    return found
