"""What watching costs: nothing, torch.profiler, stepscope and Proton, in turn in one process.

The stepscope steps are those that `stepscope run` records, under the recorder that it attaches;
`contexts` are those of `stepscope run --contexts`. Triton's Proton is there where it is installed
and there is a GPU.
Each figure is wall time of neighbouring steps, with the device waited for before and after them;
ratios are taken within a round.
"""

from __future__ import annotations

import gc
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import spread, wait_for
from benchmarks.gpu.training import Training

from stepscope.capture import record_contexts
from stepscope.capture.manifest import Run
from stepscope.capture.options import Options
from stepscope.capture.session import Ending, Session

_SETTLING_STEPS = 2


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Models with few long kernels and models with many short ones."""
    models = ("dlrm", "resnet50", "bert_large")
    for model in setting.of(models)[: 1 if setting.quick else None]:
        yield model, partial(compare, model, setting)


def compare(model: str, setting: Setting) -> Json:
    """Milliseconds a step under each tool, and each against nothing."""
    rounds, steps = (2, 2) if setting.quick else (5, 8)
    training = Training(Case(model), setting)
    for _ in range(_SETTLING_STEPS):
        training.step()
    tools = tools_for(setting)
    taken: dict[str, list[float]] = {tool: [] for tool in tools}
    for turn in range(rounds):
        for tool in _from(turn, list(tools)):
            taken[tool].append(tools[tool](training, steps))
    nothing = taken["nothing"]
    return {
        "step_ms": spread(nothing),
        "steps_each": steps,
        "tools": {
            tool: {
                "step_ms": spread(lengths),
                "against_nothing": spread([a / b for a, b in zip(lengths, nothing, strict=True)]),
            }
            for tool, lengths in taken.items()
        },
    }


def _from(turn: int, tools: list[str]) -> list[str]:
    """Each round begins with another tool."""
    first = turn % len(tools)
    return tools[first:] + tools[:first]


def _timed(training: Training, steps: int) -> float:
    """Milliseconds a step, without the collector, which would pay for another tool's garbage."""
    gc.collect()
    gc.disable()
    for _ in range(_SETTLING_STEPS):
        training.step()
    wait_for(training.device)
    begin = time.perf_counter()
    for _ in range(steps):
        training.step()
    wait_for(training.device)
    gc.enable()
    return 1e3 * (time.perf_counter() - begin) / steps


def _under_profiler(training: Training, steps: int, stacks: bool = False) -> float:
    profiler = torch.profiler.profile(record_shapes=True, with_stack=stacks)
    profiler.start()
    taken = _timed(training, steps)
    profiler.stop()
    return taken


def _under_stepscope(training: Training, steps: int, stacks: bool = False) -> float:
    """Steps inside the recorded window; it opens before them and closes after them."""
    options = Options(warmup=1, steps=_SETTLING_STEPS + steps + 1, stack=stacks)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Run(sys.argv, options), Path(folder, "run.stepscope"))
        session.attach()
        training.step()
        taken = _timed(training, steps)
        session.finish(Ending())
    if not (session.result and session.result.steps_recorded):
        raise RuntimeError(f"expected recorded steps, found {session.failure or session.result}")
    return taken


def _under_contexts(training: Training, steps: int) -> float:
    """Contexts collected; the collector is built or loaded before the clock runs."""
    with tempfile.TemporaryDirectory() as folder, record_contexts(Path(folder, "run.stepscope")):
        training.step()
        return _timed(training, steps)


def _under_proton(training: Training, steps: int) -> float:
    proton = import_module("triton.profiler")
    with tempfile.TemporaryDirectory() as folder:
        session = proton.start(str(Path(folder, "run")), context="python")
        training.step()
        taken = _timed(training, steps)
        proton.finalize(session)
    return taken


def tools_for(setting: Setting) -> dict[str, Callable[[Training, int], float]]:
    """The tools that can be compared here."""
    proton = setting.device != "cpu" and find_spec("triton") is not None
    return {**TOOLS, **({"Proton with Python's frames": _under_proton} if proton else {})}


TOOLS: dict[str, Callable[[Training, int], float]] = {
    "nothing": _timed,
    "torch.profiler": _under_profiler,
    "stepscope": _under_stepscope,
    "torch.profiler with stacks": partial(_under_profiler, stacks=True),
    "stepscope with stacks": partial(_under_stepscope, stacks=True),
    "stepscope contexts": _under_contexts,
}
