"""Predict a change from a capture of the unchanged script, make it, and measure both in turn."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.calibration import calibrate
from stepscope.calibration.calibration import cpu_model
from stepscope.capture.program import Program
from stepscope.graph import Graph, build_graph
from stepscope.opening import open as open_trace
from stepscope.verify.comparison import Comparison, Measured
from stepscope.verify.requests import Wish, requests_of
from stepscope.verify.trials import Run, Script, Show, execute
from stepscope.verify.unrecorded import unrecorded
from stepscope.whatif import Prediction, predict
from stepscope.whatif.calibrated import on_cpu

Say = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How a change is measured.

    Attributes:
        warmup: training steps of each run to let pass.
        steps: training steps of each run to time.
        rounds: runs without the change, and as many with it.
        recorded: training steps to record for the prediction.
        prefix: words before the command of each process of `ddp`, with `{rank}` in them.
    """

    warmup: int = 5
    steps: int = 10
    rounds: int = 3
    recorded: int = 4
    prefix: str = ""


def verify_change(
    script: Script, wishes: Sequence[Wish], plan: Plan, show: Show, say: Say
) -> Comparison:
    """What the changes were predicted to do to a script's step, and what they did.

    Args:
        script: what to run, unmodified.
        wishes: the changes.
        plan: how often and how long.
        show: is given each line that the script prints.
        say: is told what happens next.

    Raises:
        CaptureError: if the script fails, with the change or without it.
        ChangeError: if a change cannot be predicted for it.
    """
    Program(script.target, script.arguments, script.is_module).check()
    graphs = [_recorded(script, plan, show, say)]
    predictable = not any(wish.reason for wish in wishes)
    if predictable:
        _predicted(graphs[0], wishes, say)  # what does not apply is better known at once
    before: list[Json] = []
    after: list[Json] = []
    for number in range(plan.rounds):
        # Whatever drifts meanwhile, drifts for both.
        sides: list[tuple[Sequence[Wish], list[Json]]] = [((), before), (wishes, after)]
        for changes, runs in sides if number % 2 == 0 else reversed(sides):
            runs.append(_measured(_run(script, changes, plan, number), plan, show, say))
        if number == plan.rounds // 2 and plan.rounds > 1 and predictable:
            graphs.append(_recorded(script, plan, show, say))
    # What disturbs a recording only makes it longer.
    graph = min(graphs, key=_recorded_ms)
    return _compared(script, wishes, graph, before, after, say)


def _measured(run: Run, plan: Plan, show: Show, say: Say) -> Json:
    say(f"{run.label} of {plan.rounds}")
    return execute(run, show)


def _compared(
    script: Script, wishes: Sequence[Wish], graph: Graph, before: Sequence[Json],
    after: Sequence[Json], say: Say,
) -> Comparison:  # fmt: skip
    """What was measured of the runs, beside what is predicted from the recorded steps."""
    unchanged, facts = Measured.of(before), after[-1]
    reason = next((wish.reason for wish in wishes if wish.reason), None)
    return Comparison(
        script=" ".join([script.target, *script.arguments]),
        changes=tuple(wish.text for wish in wishes),
        before=unchanged,
        after=Measured.of(after),
        recorded_ms=_recorded_ms(graph),
        prediction=None if reason else _predicted(unrecorded(graph, unchanged), wishes, say),
        reason=reason,
        applied=facts["applied"],
        machine=_machine(facts),
    )


def _recorded(script: Script, plan: Plan, show: Show, say: Say) -> Graph:
    say("recording the script as it is")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder, "unchanged.stepscope")
        run = Run(script, plan.warmup, plan.recorded, capture=path, label="recorded")
        execute(run, show)
        return build_graph(open_trace(path, cache=False))


def _recorded_ms(graph: Graph) -> float:
    return float(graph.window.measured_ns.mean()) / 1e6


def _predicted(graph: Graph, wishes: Sequence[Wish], say: Say) -> Prediction:
    if on_cpu(graph):
        say("measuring what predictions on a CPU need, unless it is known")
        calibrate(graph.trace)
    return predict(graph, requests_of(wishes, graph))


def _run(script: Script, wishes: Sequence[Wish], plan: Plan, number: int) -> Run:
    processes = max((wish.processes for wish in wishes), default=1)
    label = "+".join(wish.text for wish in wishes) or "unchanged"
    return Run(
        script, plan.warmup, plan.steps,
        changes=[(wish.name, wish.applied) for wish in wishes],
        processes=processes, prefix=plan.prefix if processes > 1 else "",
        label=f"{label}, round {number + 1}",
    )  # fmt: skip


def _machine(facts: Json) -> Json:
    cores = os.cpu_count()
    with suppress(AttributeError):  # not everywhere
        cores = len(os.sched_getaffinity(0))
    return {
        "cpu": cpu_model(),
        "cores": cores,
        "torch": facts["torch"],
        "threads": facts["threads"],
    }
