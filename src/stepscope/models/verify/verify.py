"""Predict a change from a recording of the unchanged script, apply it, and measure both."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.base.parallel import usable_cores
from stepscope.base.scratch import Scratch, listed_writes
from stepscope.errors import ChangeError
from stepscope.facts.load import open as open_trace
from stepscope.graph import Graph, build_graph
from stepscope.models.calibration.calibration import calibrate, cpu_model
from stepscope.models.verify.comparison import MeasuredRuns, TrialComparison, unrecorded
from stepscope.models.verify.trials import Show, TrialRun, execute, script_scratch
from stepscope.models.whatif import CHANGES, Change, Prediction, Request, parse_request, predict
from stepscope.models.whatif.change import Application
from stepscope.models.whatif.cpu.calibrated import loopback, on_cpu
from stepscope.models.whatif.parts.network import Network
from stepscope.record.script_runner import Program


@dataclass(frozen=True)
class ChangeSpec:
    """A change to verify."""

    text: str
    change: Change
    application: Application
    values: Mapping[str, Any]  # its parameters, defaults for `verify` included

    @property
    def applied(self) -> tuple[str, dict[str, Any]]:
        """The name of the change, and the parameters for applying it."""
        return self.change.name, {name: self.values[name] for name in self.application.arguments}

    @property
    def processes(self) -> int:
        """The number of processes of the script."""
        return int(self.values["workers"]) if self.application.processes else 1

    def requests(self, graph: Graph) -> tuple[Request, ...]:
        """The changes that predict it on this machine, where all processes share the cores."""
        if self.processes < 2 or not on_cpu(graph):
            return (Request(self.change, self.values),)
        values = {**loopback(graph), **self.values}
        shared = Request(CHANGES["shared_cores"], {"processes": self.processes})
        return Request(self.change, values), shared


def verifiable_changes() -> dict[str, Change]:
    """The changes that `verify` can apply to a script, by name."""
    return {name: change for name, change in CHANGES.items() if change.application}


def parse_specs(text: str) -> tuple[ChangeSpec, ...]:
    """Parse changes such as `amp`, `dataloader:workers=4` or `amp+fused_optimizer`; raises ChangeError
    if there is no such change or parameter, or PyTorch cannot apply it."""
    return tuple(_spec(part) for part in text.split("+"))


def requests_of(specs: Sequence[ChangeSpec], graph: Graph) -> tuple[Request, ...]:
    """The changes that predict several specs together; sharing the cores comes last."""
    requests = [request for spec in specs for request in spec.requests(graph)]
    return tuple(sorted(requests, key=lambda request: request.change.name == "shared_cores"))


def _spec(text: str) -> ChangeSpec:
    request = parse_request(text, CHANGES)
    change, given, name = request.change, request.values, request.change.name
    if not (application := change.application):
        names = ", ".join(verifiable_changes())
        raise ChangeError(f"PyTorch cannot apply {name!r} to a script; choose one of {names}")
    # What is not applied may still describe the prediction, or the network of the processes.
    network = (each.name for each in fields(Network) if each.metadata.get("parameter", True))
    known = {*application.arguments, *change.low, *change.high, *network}
    usual = {**{key: one.default for key, one in change.parameters.items()}, **application.defaults}
    others = [f"{key}={given[key]}" for key in given if key not in known and given[key] != usual[key]]
    if others:
        raise ChangeError(f"{name}: `verify` cannot apply {others[0]}, only: {application.summary}")
    values = {**application.defaults, **given}
    if missing := [key for key in application.arguments if not values.get(key)]:
        raise ChangeError(f"{name}: `verify` needs {missing[0]}=…, {change.parameters[missing[0]].meaning}")
    return ChangeSpec(text, change, application, values)


Say = Callable[[str], None]
Json = dict[str, Any]


@dataclass(frozen=True)
class TrialPlan:
    """How a change is measured."""

    warmup: int = 5  # training steps of each run that are not timed
    steps: int = 10  # training steps of each run to time
    rounds: int = 3  # number of runs without the change, and with it
    recorded: int = 4  # training steps to record for the prediction
    prefix: str = ""  # words before the command of each process, with `{rank}` in them
    in_place: bool = False  # run the script in its project instead of a scratch view of it


def verify_change(
    script: Program, specs: Sequence[ChangeSpec], plan: TrialPlan, show: Show, say: Say
) -> TrialComparison:
    """Compare the predicted with the measured effect of changes on a script's step; raises
    CaptureError if the script fails, and ChangeError if a change does not apply to it."""
    script.check()
    scratch = script_scratch(script, in_place=plan.in_place)
    say(f"running {script.target} {2 * plan.rounds + 1} times or more {scratch.sentence}")
    graphs = [_recorded(script, plan, scratch, show, say)]
    predictable = not _only_measured(specs, graphs[0])
    if predictable:
        _predicted(graphs[0], specs, say)  # fail early if a change does not apply
    before: list[Json] = []
    after: list[Json] = []
    for number in range(plan.rounds):
        # The order alternates, so that drift affects both sides.
        sides: list[tuple[Sequence[ChangeSpec], list[Json]]] = [((), before), (specs, after)]
        for changes, runs in sides if number % 2 == 0 else reversed(sides):
            run = _run(script, changes, plan, number, scratch)
            say(f"{run.label} of {plan.rounds}")
            runs.append(execute(run, show))
        if number == plan.rounds // 2 and plan.rounds > 1 and predictable:
            graphs.append(_recorded(script, plan, scratch, show, say))
    # Noise only makes a recording longer.
    graph = min(graphs, key=lambda graph: graph.window.measured_ns.mean())
    if paths := listed_writes(path for run in (*before, *after) for path in run.get("outside_writes", ())):
        say(f"the script also writes outside its project, at each run: {paths}")
    return _compared(script, specs, graph, before, after, say)


def _compared(
    script: Program,
    specs: Sequence[ChangeSpec],
    graph: Graph,
    before: Sequence[Json],
    after: Sequence[Json],
    say: Say,
) -> TrialComparison:
    unchanged, facts = MeasuredRuns.of(before), after[-1]
    reason = _only_measured(specs, graph)
    return TrialComparison(
        script=" ".join([script.target, *script.arguments]),
        changes=tuple(spec.text for spec in specs),
        before=unchanged,
        after=MeasuredRuns.of(after),
        recorded_ms=float(graph.window.measured_ns.mean()) / 1e6,
        prediction=None if reason else _predicted(unrecorded(graph, unchanged), specs, say),
        reason=reason,
        applied=facts["applied"],
        machine=_machine(facts),
    )


def _only_measured(specs: Sequence[ChangeSpec], graph: Graph) -> str | None:
    """Why the changes are not predicted for a graph, if so."""
    return next(filter(None, (spec.change.only_measured for spec in specs if on_cpu(graph))), None)


def _recorded(script: Program, plan: TrialPlan, scratch: Scratch, show: Show, say: Say) -> Graph:
    say("recording the unchanged script")
    with TemporaryDirectory(prefix="stepscope-") as folder:
        path = Path(folder, "unchanged.stepscope")
        run = TrialRun(script, plan.warmup, plan.recorded, capture=path, label="recorded", scratch=scratch)
        execute(run, show)
        return build_graph(open_trace(path, cache=False))


def _predicted(graph: Graph, specs: Sequence[ChangeSpec], say: Say) -> Prediction:
    if on_cpu(graph):
        say("calibrating this CPU, unless done before")
        calibrate(graph.trace)
    return predict(graph, requests_of(specs, graph))


def _run(
    script: Program, specs: Sequence[ChangeSpec], plan: TrialPlan, number: int, scratch: Scratch
) -> TrialRun:
    processes = max((spec.processes for spec in specs), default=1)
    label = "+".join(spec.text for spec in specs) or "unchanged"
    return TrialRun(
        script,
        plan.warmup,
        plan.steps,
        changes=[spec.applied for spec in specs],
        processes=processes,
        prefix=plan.prefix if processes > 1 else "",
        label=f"{label}, round {number + 1}",
        scratch=scratch,
    )


def _machine(facts: Json) -> Json:
    return {"cpu": cpu_model(), "cores": usable_cores(), "torch": facts["torch"], "threads": facts["threads"]}
