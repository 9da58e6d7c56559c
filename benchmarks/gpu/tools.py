"""The tools whose cost is compared: steps under each, in a process that uses no other.

    python -m benchmarks.gpu.tools MODEL TOOL --device D --steps N --seed N [--quick]

A process that has used torch.profiler once keeps hold of CUPTI, through which all of these tools
watch a device, and no other tool gets in. So each tool runs in a separate process. It says when it
is ready, takes a turn whenever it reads a line, and answers each time with a line of JSON.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.contexts_file import read_contexts
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import wait_for
from benchmarks.gpu.training import Training

from stepscope.record import record_contexts
from stepscope.record.manifest import Run
from stepscope.record.options import RecordOptions
from stepscope.record.session import Ending, Session

Json = dict[str, Any]
_SETTLING_STEPS = 2
_PROTON = "Proton with Python's frames"


def _timed(training: Training, steps: int) -> Json:
    """Milliseconds a step, without the collector, which would pay for another turn's garbage."""
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
    return {"ms": 1e3 * (time.perf_counter() - begin) / steps}


def _under_profiler(training: Training, steps: int, stacks: bool = False) -> Json:
    profiler = torch.profiler.profile(record_shapes=True, with_stack=stacks)
    profiler.start()
    taken = _timed(training, steps)
    profiler.stop()
    return taken


def _under_stepscope(training: Training, steps: int, stacks: bool = False) -> Json:
    """Steps inside the recorded window; it opens before them and closes after them."""
    options = RecordOptions(warmup=1, steps=_SETTLING_STEPS + steps + 1, stack=stacks)
    with tempfile.TemporaryDirectory() as folder:
        session = Session(Run(sys.argv, options), Path(folder, "run.stepscope"))
        session.attach()
        training.step()
        taken = _timed(training, steps)
        session.finish(Ending())
    if not (session.result and session.result.steps_recorded):
        raise RuntimeError(f"expected recorded steps, found {session.failure or session.result}")
    return taken


def _under_contexts(training: Training, steps: int) -> Json:
    """Contexts collected, and by what; the collector is built or loaded before the clock runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.stepscope")
        with record_contexts(path):
            training.step()
            taken = _timed(training, steps)
        content = read_contexts(path)
    device = "device_ns" in content["metrics"]
    about = {"collector": content["collector"], "follows_device": device, "notes": content["notes"]}
    return {**taken, "about": about}


def _under_proton(training: Training, steps: int) -> Json:
    proton = import_module("triton.profiler")
    with tempfile.TemporaryDirectory() as folder:
        session = proton.start(str(Path(folder, "run")), context="python")
        training.step()
        taken = _timed(training, steps)
        proton.finalize(session)
    return taken


TOOLS: dict[str, Callable[[Training, int], Json]] = {
    "nothing": _timed,
    "torch.profiler": _under_profiler,
    "stepscope": _under_stepscope,
    "stepscope contexts": _under_contexts,
    "torch.profiler with stacks": partial(_under_profiler, stacks=True),
    "stepscope with stacks": partial(_under_stepscope, stacks=True),
    _PROTON: _under_proton,
}


def tools_for(setting: Setting) -> list[str]:
    """The tools that can be compared here; a quick run takes each kind once."""
    if setting.quick:
        return list(TOOLS)[:4]
    proton = setting.on_gpu and find_spec("triton") is not None
    return [tool for tool in TOOLS if tool != _PROTON or proton]


# -- a tool's process


def main() -> None:
    args = _arguments()
    lines = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed is not an answer

    def answer(found: Json) -> None:
        print(json.dumps(found), file=lines, flush=True)

    try:
        _take_turns(args, answer)
    except Exception as error:  # whatever it is, the other tools go on
        answer({"error": f"{type(error).__name__}: {str(error)[:600]}"})


def _take_turns(args: argparse.Namespace, answer: Callable[[Json], None]) -> None:
    setting = Setting(args.device, args.quick, Path(), args.seed)
    training = Training(Case(args.model), setting)
    for _ in range(_SETTLING_STEPS):
        training.step()
    wait_for(setting.device)
    answer({})
    for _ in sys.stdin:
        answer(TOOLS[args.tool](training, args.steps))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("tool", choices=TOOLS)
    parser.add_argument("--device", choices=("cuda", "cpu"), required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--quick", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
