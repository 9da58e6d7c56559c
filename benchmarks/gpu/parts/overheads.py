"""The overhead of profilers: none, torch.profiler, stepscope and Proton, in turn.

The stepscope steps are those that `stepscope run` records, under the recorder that it attaches;
`contexts` are those of `stepscope run --contexts`. Triton's Proton is there where it is installed
and there is a GPU.
Each figure is wall time of neighboring steps, with the device waited for before and after them;
ratios are taken within a round. Each tool runs in a separate process, and they take turns.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from functools import partial
from threading import TIMEOUT_MAX, Timer

from benchmarks.gpu.parts import Json, Measurement
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import spread
from benchmarks.gpu.tools import tools_for

_ANSWER_WITHIN_S = 150.0  # a first turn may have a collector to build


def measurements(setting: Setting, done: Mapping[str, Json]) -> Iterator[Measurement]:
    """Models with few long kernels and models with many short ones."""
    models = ("dlrm", "resnet50", "bert_large")
    for model in setting.of(models)[: 1 if setting.quick else None]:
        yield model, partial(compare, model, setting)


def compare(model: str, setting: Setting) -> Json:
    """Milliseconds a step under each tool, and each against nothing."""
    rounds, steps = (2, 2) if setting.quick else (5, 8)
    with ExitStack() as stack:
        processes = {
            tool: stack.enter_context(Turns(model, tool, steps, setting)) for tool in tools_for(setting)
        }
        answers = {tool: [process.answer()] for tool, process in processes.items()}
        for turn in range(rounds):
            for tool in _from(turn, list(processes)):
                if "error" not in answers[tool][-1]:
                    answers[tool].append(processes[tool].take())
    return judged({tool: taken[1:] or taken for tool, taken in answers.items()}, steps)


def judged(answers: Mapping[str, list[Json]], steps: int) -> Json:
    """The result, from what each tool's process answered in each round."""
    if error := answers["nothing"][-1].get("error"):
        raise RuntimeError(error)
    nothing = [taken["ms"] for taken in answers["nothing"]]
    return {
        "step_ms": spread(nothing),
        "steps_each": steps,
        "tools": {tool: _cost(taken, nothing) for tool, taken in answers.items()},
    }


def _cost(taken: list[Json], nothing: list[float]) -> Json:
    """A tool's steps, and those against the steps of the same round that nothing watched."""
    if "error" in taken[-1]:
        return taken[-1]
    lengths = [one["ms"] for one in taken]
    against = spread([mine / plain for mine, plain in zip(lengths, nothing, strict=True)])
    return {"step_ms": spread(lengths), "against_nothing": against, **taken[-1].get("about", {})}


def _from(turn: int, tools: list[str]) -> list[str]:
    """Each round begins with another tool."""
    first = turn % len(tools)
    return tools[first:] + tools[:first]


class Turns:
    """A process in which one tool takes turns; it starts at once, and ends with the block."""

    def __init__(self, model: str, tool: str, steps: int, setting: Setting) -> None:
        options = ["--device", setting.device, "--steps", str(steps), "--seed", str(setting.seed)]
        options += ["--quick"] if setting.quick else []
        self._limit_s = _ANSWER_WITHIN_S if setting.on_gpu else None
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.tools", model, tool, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self) -> Json:
        """A turn, and what it took."""
        assert self._process.stdin
        with suppress(BrokenPipeError):  # then there is no answer either
            print(file=self._process.stdin, flush=True)
        return self.answer()

    def answer(self) -> Json:
        """What the process says next; a process that does not answer is ended."""
        assert self._process.stdout
        limit = Timer(self._limit_s or TIMEOUT_MAX, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        return json.loads(line) if line else {"error": f"its process ended: {self._process.wait()}"}

    def __enter__(self) -> Turns:
        return self

    def __exit__(self, *_: object) -> None:
        """The end of its input ends it, as would the end of this process."""
        try:
            self._process.communicate(timeout=self._limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
