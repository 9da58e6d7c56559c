"""Drawn runs of known length are recorded at a known cost; the cost is removed from their times."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest
from corrected import corrected_trace

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.testing import drawn_trace
from stepscope.trace.memory_schema import TENSOR_USES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

STEPS = 3
BEFORE, AFTER = 0.7, 0.3  # µs that recording takes before and after each event
STAGES = ("forward", "backward", "optimizer")


@dataclass
class Call:
    """An operator: µs of its own before, between and after the operators that it calls."""

    name: str
    gaps: list[float]
    inside: "list[Call]" = field(default_factory=list)
    kernel: float = 0  # µs of device work that it launches
    waits: bool = False


def random_call(random: random.Random, name: str, depth: int, kernels: bool) -> Call:
    inside = [
        random_call(random, f"aten::op{random.randrange(9)}", depth - 1, kernels)
        for _ in range(random.randrange(4) if depth else 0)
    ]
    gaps = [random.uniform(2, 9) for _ in range(len(inside) + 1)]
    return Call(name, gaps, inside, random.uniform(1, 30) if kernels and not inside else 0)


def random_stages(seed: int, kernels: bool = False) -> dict[str, Call]:
    chance = random.Random(seed)
    names = {
        "forward": "stepscope.module:net",
        "backward": "autograd::engine::evaluate_function: MmBackward0",
        "optimizer": "Optimizer.step#SGD.step",
    }
    return {stage: random_call(chance, name, 4, kernels) for stage, name in names.items()}


class Machine:
    """Runs calls, recorded or not, and draws what a recorder would have seen."""

    def __init__(self, recorded: bool) -> None:
        self.before, self.after = (BEFORE, AFTER) if recorded else (0.0, 0.0)
        self.slower = 1.0  # operators themselves
        self.now = self.device = 0.0
        self.lines: list[str] = []
        self.stages: dict[str, float] = dict.fromkeys(STAGES, 0.0)
        self.correlation = 0

    def run(self, stages: dict[str, Call], steps: int = STEPS, waits: bool = False) -> list[float]:
        """The lengths of the steps."""
        lengths = []
        for step in range(steps):
            begin, at = self.now, len(self.lines)
            self.lines.append("")
            for stage, call in stages.items():
                entered = self.now
                self.call(call)
                self.stages[stage] += (self.now - entered) / steps
            if waits:
                self.wait()
            self.now += 1
            self.lines[at] = f"main | {begin} {self.now} | ProfilerStep#{step}"
            lengths.append(self.now - begin)
        return lengths

    def call(self, call: Call) -> None:
        with_cost, at = self.enter(), len(self.lines)
        self.lines.append("")
        for gap, inside in zip(call.gaps, [*call.inside, None], strict=True):
            self.now += self.slower * gap
            if inside:
                self.call(inside)
        if call.kernel:
            self.launch(call.kernel)
        self.lines[at] = f"main | {with_cost} {self.now} | {call.name}"
        self.now += self.after

    def enter(self) -> float:
        self.now += self.before
        return self.now

    def launch(self, length: float) -> None:
        begin = self.enter()
        self.now += 3
        self.correlation += 1
        start = max(self.device, begin + 2)
        self.device = start + length
        self.lines += [
            f"main | {begin} {self.now} | cudaLaunchKernel | corr={self.correlation}",
            f"stream 7 | {start} {self.device} | kernel | corr={self.correlation}",
        ]
        self.now += self.after

    def wait(self) -> None:
        begin = self.enter()
        self.now = max(self.now + 1, self.device)
        self.lines.append(f"main | {begin} {self.now} | cudaDeviceSynchronize")
        self.now += self.after


def facts(length: float, machine: Machine) -> dict[str, object]:
    """What the recorder keeps of the steps of a run."""
    stages = {name: round(1000 * machine.stages[name]) for name in ("backward", "optimizer")}
    parts = {**stages, "data_loading": 0, "rest": round(1000 * length) - sum(stages.values())}
    return {
        "count": 20,
        "median_ns": round(1000 * length),
        "p10_ns": 0,
        "p90_ns": 0,
        "parts": {name: {"median_ns": time, "cpu_ns": time} for name, time in parts.items()},
    }


@dataclass
class Run:
    """A recorded trace before annotation, and the same run without recording."""

    recorded: Trace
    unrecorded: Trace
    stages: dict[str, float]
    step_us: float


def run_of(stages: dict[str, Call], waits: bool = False) -> Run:
    slow, fast = Machine(recorded=True), Machine(recorded=False)
    lengths = [float(np.median(machine.run(stages, waits=waits))) for machine in (slow, fast)]
    capture = {
        "outcome": "complete",
        "recorded_steps": facts(lengths[0], slow),
        "unrecorded_steps": facts(lengths[1], fast),
    }
    return Run(
        drawn_trace("\n".join(slow.lines), capture=capture),
        drawn_trace("\n".join(fast.lines)),
        fast.stages,
        lengths[1],
    )


def stage_times(trace: Trace) -> dict[str, float]:
    """µs per step."""
    runs = trace["stages"]
    return {
        stage: float(runs["cpu_ns"][runs.text("stage").mask(stage)].sum()) / 1000 / STEPS for stage in STAGES
    }


def ends(trace: Trace):
    return trace.events["start_ns"] + trace.events["duration_ns"]


def check_invariants(corrected: Trace, recorded: Trace) -> None:
    """Order, nesting and links hold, and no time is negative."""
    events = corrected.events
    assert (events["duration_ns"] >= 0).all()
    assert (np.diff(events["start_ns"]) >= 0).all()
    child = np.flatnonzero(events["parent"] >= 0)
    outer = events["parent"][child]
    assert (events["start_ns"][outer] <= events["start_ns"][child]).all()
    assert (ends(corrected)[outer] >= ends(corrected)[child]).all()
    here, before = (np.argsort(trace.events["source"]) for trace in (corrected, recorded))
    parents = [
        np.append(trace.events["source"], -1)[trace.events["parent"][order]]
        for trace, order in ((corrected, here), (recorded, before))
    ]
    assert (parents[0] == parents[1]).all()
    launches = corrected["launches"]
    assert (launches["delay_ns"] >= 0).all()


def device_lengths(trace: Trace):
    order = np.argsort(trace.events["source"])
    device = (trace["tracks"]["device"][trace.events["track"]] >= 0)[order]
    return trace.events["duration_ns"][order][device]


@pytest.mark.parametrize("seed", range(12))
def test_stages_are_as_long_as_unrecorded(seed: int) -> None:
    run = run_of(random_stages(seed))
    corrected = corrected_trace(run.recorded)
    check_invariants(corrected, run.recorded)
    found = stage_times(corrected)
    for stage, truth in run.stages.items():
        assert found[stage] == pytest.approx(truth, rel=0.02, abs=3), stage
    lengths = step_lengths(corrected["steps"]) / 1000
    assert lengths.mean() == pytest.approx(run.step_us, rel=0.01, abs=3)


def test_events_inside_lose_what_they_cost() -> None:
    """An operator has the cost of those that it calls, and none of its own."""
    leaf = [Call("aten::leaf", [20]) for _ in range(5)]
    run = run_of({"forward": Call("stepscope.module:net", [10] * 6, leaf)})
    names = {name: [] for name in ("aten::leaf", "stepscope.module:net")}
    corrected = corrected_trace(run.recorded)
    for event in corrected.events.rows():
        if event["name"] in names:
            names[event["name"]].append(event["duration_ns"] / 1000)
    assert names["aten::leaf"] == pytest.approx([20] * 15, abs=0.01)
    assert names["stepscope.module:net"] == pytest.approx([160] * 3, abs=1)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("waits", [False, True])
def test_device_work_is_not_touched(seed: int, waits: bool) -> None:
    run = run_of(random_stages(seed, kernels=True), waits)
    corrected = corrected_trace(run.recorded)
    check_invariants(corrected, run.recorded)
    assert (device_lengths(corrected) == device_lengths(run.recorded)).all()
    found, truth = (
        step_lengths(trace["steps"]).mean() for trace in (corrected, corrected_trace(run.unrecorded))
    )
    assert found == pytest.approx(truth, rel=0.05, abs=5000)


def test_every_table_is_on_the_corrected_clock() -> None:
    recorded = run_of(random_stages(3)).recorded
    rows = np.arange(0, len(recorded.events), 3)
    uses = Table(
        TENSOR_USES,
        {
            "event": rows.astype(np.int32),
            "time_ns": recorded.events["start_ns"][rows],
            "address": rows,
            "shape": Text.of(["4"] * len(rows)),
            "dtype": Text.of(["float32"] * len(rows)),
        },
    )
    corrected = corrected_trace(recorded.with_table(uses))
    found = corrected["tensor_uses"]
    assert (found["time_ns"] != uses["time_ns"]).any()
    assert (found["time_ns"] == corrected.events["start_ns"][found["event"]]).all()


def test_a_step_that_the_device_limits_keeps_its_length() -> None:
    """The CPU has less to do and waits longer."""
    calls = [Call("aten::mm", [5], kernel=60) for _ in range(10)]
    names = {"forward": "stepscope.module:net", "optimizer": "Optimizer.step#SGD.step"}
    run = run_of({name: Call(range, [5] * 11, calls) for name, range in names.items()}, waits=True)
    corrected = corrected_trace(run.recorded)
    check_invariants(corrected, run.recorded)
    before = step_lengths(annotate(run.recorded)["steps"])
    assert step_lengths(corrected["steps"]) == pytest.approx(before, rel=0.005)
    found = stage_times(corrected)
    for stage in names:
        assert found[stage] == pytest.approx(run.stages[stage], rel=0.03), stage


def test_backward_on_a_thread_of_its_own_is_corrected() -> None:
    operator = "autograd::engine::evaluate_function: MmBackward0"
    lines = ["main | 0 220 | ProfilerStep#0", "main | 0 50 | stepscope.module:net"]
    lines += [f"autograd | {60 + 15 * n} {70 + 15 * n} | {operator} | fwd=1" for n in range(10)]
    parts = {"backward": (150, 110), "rest": (70, 70)}
    capture = {
        "outcome": "complete",
        **{
            name: {
                "count": 3,
                "median_ns": total,
                "p10_ns": 0,
                "p90_ns": 0,
                "parts": {
                    part: {"median_ns": times[side] * 1000, "cpu_ns": times[side] * 1000}
                    for part, times in parts.items()
                },
            }
            for side, (name, total) in enumerate(
                {"recorded_steps": 220_000, "unrecorded_steps": 180_000}.items()
            )
        },
    }
    corrected = corrected_trace(drawn_trace("\n".join(lines), capture=capture))
    assert step_lengths(corrected["steps"]).tolist() == [pytest.approx(180_000, rel=0.03)]
    kept = [row["duration_ns"] for row in corrected.events.rows() if row["name"] == operator]
    assert kept == [10_000] * 10


# -- where nothing is corrected


def changed(capture: dict[str, object] | None) -> Callable[[Run], Trace]:
    def change(run: Run) -> Trace:
        return run.recorded.with_metadata(
            capture=capture if capture is None else {**run.recorded.metadata.capture, **capture}
        )

    return change


def followed_by(cpu_ns: int) -> Callable[[Run], Trace]:
    """Steps of 1 ms of CPU time while recording, and of `cpu_ns` after it."""

    def change(run: Run) -> Trace:
        capture = dict(run.recorded.metadata.capture)
        for name, ns in ("recorded_steps", 1_000_000), ("unrecorded_steps", cpu_ns):
            capture[name] = {**capture[name], "process_cpu_ns": ns}
        return run.recorded.with_metadata(capture=capture)

    return change


def as_foreign(run: Run) -> Trace:
    return run.recorded.with_metadata(capture={})


def as_rank(run: Run) -> Trace:
    return run.recorded.with_metadata(world_size=2)


def cases() -> Iterator[tuple[Callable[[Run], Trace], str]]:
    yield changed({"unrecorded_steps": None}), "no unrecorded steps were timed"
    yield as_rank, "ranks wait for each other"
    yield followed_by(2_800_000), "took 2.8 times as much CPU time (2.8 ms), so the recorded ones"
    yield as_foreign, ""


@pytest.mark.parametrize(("change", "why"), list(cases()))
def test_times_stay_as_recorded(change: Callable[[Run], Trace], why: str) -> None:
    trace = change(run_of(random_stages(1)))
    found = corrected_trace(trace)
    assert found.events["duration_ns"].tolist() == trace.events["duration_ns"].tolist()
    assert why in found.metadata.recording_cost.get("unknown", "")


def test_steps_that_took_a_little_more_afterwards_did_the_same_work() -> None:
    run = run_of(random_stages(1))
    found = corrected_trace(followed_by(1_250_000)(run))
    assert found.metadata.recording_cost["removed_ns"] > 0


def test_short_steps_that_took_twice_as_much_may_do_so_by_chance() -> None:
    """0.2 and 0.4 ms: threads of XLA finish the work of one step in the next."""
    run = run_of(random_stages(1))
    capture = dict(run.recorded.metadata.capture)
    for name, ns in ("recorded_steps", 200_000), ("unrecorded_steps", 400_000):
        capture[name] = {**capture[name], "process_cpu_ns": ns}
    found = corrected_trace(run.recorded.with_metadata(capture=capture))
    assert "unknown" not in found.metadata.recording_cost


def test_recorded_times_are_there_on_request() -> None:
    recorded = run_of(random_stages(1)).recorded
    found = annotate(recorded)
    assert found.events["duration_ns"].tolist() == recorded.events["duration_ns"].tolist()


def test_faster_recorded_steps_are_not_stretched() -> None:
    run = run_of(random_stages(1))
    capture = dict(run.recorded.metadata.capture)
    capture["recorded_steps"], capture["unrecorded_steps"] = (
        capture["unrecorded_steps"],
        capture["recorded_steps"],
    )
    found = corrected_trace(run.recorded.with_metadata(capture=capture))
    assert found.events["duration_ns"].tolist() == run.recorded.events["duration_ns"].tolist()
    assert found.metadata.recording_cost["removed_ns"] == 0


def test_recording_explains_no_more_than_it_can_cost() -> None:
    """Unrecorded steps that are much shorter did less: the difference is not all recording."""
    run = run_of(random_stages(1))
    capture = dict(run.recorded.metadata.capture)
    capture["unrecorded_steps"] = {
        **capture["unrecorded_steps"],
        "parts": {part: {"median_ns": 0, "cpu_ns": 0} for part in capture["recorded_steps"]["parts"]},
    }
    capture["recorded_steps"] = {
        **capture["recorded_steps"],
        "parts": {part: {"median_ns": 10**9, "cpu_ns": 10**9} for part in capture["recorded_steps"]["parts"]},
    }
    cost = corrected_trace(run.recorded.with_metadata(capture=capture)).metadata.recording_cost
    assert cost["removed_ns"] <= 10_000 * cost["events"] * 1.01


def test_a_capture_with_the_whole_step_only() -> None:
    """As earlier versions wrote it."""
    run = run_of(random_stages(2))
    capture = dict(run.recorded.metadata.capture)
    capture["recorded_steps"] = None
    capture["unrecorded_steps"] = {**capture["unrecorded_steps"], "parts": {}}
    corrected = corrected_trace(run.recorded.with_metadata(capture=capture))
    lengths = step_lengths(corrected["steps"]) / 1000
    assert lengths.mean() == pytest.approx(run.step_us, rel=0.01, abs=2)


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_begin_with_a_rollout_lose_more_than_others(seed: int) -> None:
    """Costs are medians: one step in five has many events more."""
    chance = random.Random(seed)
    stages = {**random_stages(seed), "backward": Call("MmBackward0", [30.0])}
    many = [Call(f"aten::act{n}", [chance.uniform(3, 9)]) for n in range(200)]
    rollout = Call("stepscope.block: rollout (/x/ppo.py:3)", [2.0] * 201, many)
    lengths, machines = [], [Machine(recorded) for recorded in (True, False)]
    for machine in machines:
        lengths.append([])
        for step in range(10):
            first = {"rollout": rollout} if step % 5 == 0 else {}
            machine.stages = {**machine.stages, "rollout": 0.0}
            at = len(machine.lines)
            lengths[-1] += machine.run({**first, **stages}, steps=1)
            machine.lines[at] = machine.lines[at].replace("#0", f"#{step}")
    for machine in machines:
        machine.stages = {name: spent / 10 for name, spent in machine.stages.items()}
    slow, fast = (float(np.median(each)) for each in lengths)
    capture = {
        "outcome": "complete",
        "recorded_steps": facts(slow, machines[0]),
        "unrecorded_steps": facts(fast, machines[1]),
    }
    corrected = corrected_trace(drawn_trace("\n".join(machines[0].lines), capture=capture))
    found = step_lengths(corrected["steps"]) / 1000
    assert found.tolist() == pytest.approx(lengths[1], rel=0.1, abs=4)


# -- parts with the times at which they began


class PartsMachine(Machine):
    """Events of some stages cost more to record, and Python runs before and after each stage."""

    WEIGHT: ClassVar = {"forward": 3.0, "evaluation": 2.0, "backward": 1.0, "optimizer": 0.5}
    PYTHON = 6.0

    def __init__(self, recorded: bool) -> None:
        super().__init__(recorded)
        self.changes: list[tuple[float, str]] = []
        self.parts = dict.fromkeys((*self.WEIGHT, "rest"), 0.0)

    def run_parts(self, calls: list[tuple[str, Call]]) -> list[float]:
        before, after = self.before, self.after
        lengths = []
        for step in range(STEPS):
            begin, at = self.now, len(self.lines)
            self.lines.append("")
            for part, call in calls:
                self.spend("rest", 99.0)
                self.before, self.after = (self.WEIGHT[part] * cost for cost in (before, after))
                self.changes.append((self.now, part))
                entered = self.now
                python = 0.0 if part == "evaluation" else self.PYTHON  # its range is all of it
                self.now += python
                self.call(call)
                self.now += python
                self.parts[part] += (self.now - entered) / STEPS
                self.changes.append((self.now, "rest"))
            self.lines[at] = f"main | {begin} {self.now} | ProfilerStep#{step}"
            lengths.append(self.now - begin)
        return lengths

    def spend(self, part: str, time: float) -> None:
        self.now += time
        self.parts[part] += time / STEPS

    def facts(self, length: float) -> dict[str, object]:
        names = list(self.parts)
        first = self.changes[0][0]
        changes = {
            "parts": names,
            "since_unix_ns": round(1000 * first),
            "after_ns": [round(1000 * (moment - first)) for moment, _ in self.changes],
            "part": [names.index(part) for _, part in self.changes],
        }
        parts = {
            name: dict.fromkeys(("median_ns", "cpu_ns"), round(1000 * time))
            for name, time in self.parts.items()
        }
        return {**facts(length, self), "parts": parts, "changes": changes}


class PagesMachine(PartsMachine):
    """Recorded operators get new pages of memory, of which some parts touch more than others."""

    WEIGHT: ClassVar = dict.fromkeys(PartsMachine.WEIGHT, 1.0)
    FAULTS = 2000

    def __init__(self, recorded: bool, slower: dict[str, float], faults_per_page: float) -> None:
        super().__init__(recorded)
        self.by_part = slower if recorded else {}
        self.each = faults_per_page
        self.recorded, self.memory = recorded, 0.0

    def call(self, call: Call) -> None:
        self.slower = self.by_part.get(self.changes[-1][1], 1.0)
        self.memory += (self.slower - 1) * sum(call.gaps) / STEPS
        super().call(call)

    def facts(self, length: float) -> dict[str, object]:
        faults = 7 + (self.FAULTS if self.recorded else 0)
        each = round(1000 * self.memory / self.FAULTS / self.each)
        return {**super().facts(length), "page_faults": faults, "page_fault_ns": each}


def part_calls(seed: int) -> list[tuple[str, Call]]:
    stages = random_stages(seed)
    names = {"evaluation": "stepscope.evaluation: score (/x/a.py:3)"}
    stages["evaluation"] = random_call(random.Random(seed), names["evaluation"], 4, kernels=False)
    return [(part, stages[part]) for part in ("forward", "backward", "optimizer", "evaluation")]


def parts_run(seed: int) -> tuple[Trace, PartsMachine, float]:
    calls = part_calls(seed)
    machines = PartsMachine(recorded=True), PartsMachine(recorded=False)
    lengths = [float(np.median(machine.run_parts(calls))) for machine in machines]
    slow, fast = machines
    capture = {
        "outcome": "complete",
        "recorded_steps": slow.facts(lengths[0]),
        "unrecorded_steps": {**fast.facts(lengths[1]), "changes": None},
    }
    return drawn_trace("\n".join(slow.lines), capture=capture), fast, lengths[1]


@pytest.mark.parametrize("seed", range(12))
def test_each_part_loses_what_its_own_events_cost(seed: int) -> None:
    recorded, truth, step_us = parts_run(seed)
    corrected = corrected_trace(recorded)
    check_invariants(corrected, recorded)
    lengths = step_lengths(corrected["steps"]) / 1000
    assert lengths.mean() == pytest.approx(step_us, rel=0.01, abs=3)
    runs = corrected["stages"]
    for part in ("forward", "backward", "optimizer", "evaluation"):
        found = float(runs["cpu_ns"][runs.text("stage").mask(part)].sum()) / 1000 / STEPS
        assert found == pytest.approx(truth.parts[part], rel=0.01, abs=1), part


@pytest.mark.parametrize("faults_per_page", [1.0, 2.5])
@pytest.mark.parametrize("seed", range(6))
def test_parts_lose_what_new_pages_of_memory_cost(seed: int, faults_per_page: float) -> None:
    """Pages make operators 1.5 to 5 times as long, which is far more than events can cost."""
    chance = random.Random(seed)
    slower = {"backward": 5.0, "forward": chance.uniform(1.5, 3), "optimizer": 1.0}
    machines = [PagesMachine(kind, slower, faults_per_page) for kind in (True, False)]
    lengths = [float(np.median(one.run_parts(part_calls(seed)))) for one in machines]
    slow, fast = machines
    capture = {
        "outcome": "complete",
        "recorded_steps": slow.facts(lengths[0]),
        "unrecorded_steps": {**fast.facts(lengths[1]), "changes": None},
    }
    recorded = drawn_trace("\n".join(slow.lines), capture=capture)
    corrected = corrected_trace(recorded)
    check_invariants(corrected, recorded)
    assert step_lengths(corrected["steps"]).mean() / 1000 == pytest.approx(lengths[1], rel=0.02)
    runs = corrected["stages"]
    for part in ("forward", "backward", "optimizer", "evaluation"):
        found = float(runs["cpu_ns"][runs.text("stage").mask(part)].sum()) / 1000 / STEPS
        assert found == pytest.approx(fast.parts[part], rel=0.03, abs=2), part


def test_page_faults_explain_no_more_than_they_cost() -> None:
    """2,000 of 1 µs and at most three times that, of parts that took 1 s."""
    run = run_of(random_stages(1))
    capture = dict(run.recorded.metadata.capture)
    for name, ns, faults in ("recorded_steps", 10**9, 2000), ("unrecorded_steps", 0, 0):
        parts = {part: {"median_ns": ns, "cpu_ns": ns} for part in capture[name]["parts"]}
        capture[name] = {**capture[name], "parts": parts, "page_faults": faults, "page_fault_ns": 1000}
    cost = corrected_trace(run.recorded.with_metadata(capture=capture)).metadata.recording_cost
    assert cost["memory_ns"] == 6_000_000
    assert cost["removed_ns"] <= 10_000 * cost["events"] * 1.01 + 6_000_000


def drawn_parts(spans: list[tuple[str, float]]) -> dict[str, object]:
    """`changes` of parts that follow each other from 0 on, µs each."""
    names = list(dict(spans))
    after = np.cumsum([0, *(1000 * length for _, length in spans[:-1])]).astype(int).tolist()
    part = [names.index(name) for name, _ in spans]
    return {"parts": names, "since_unix_ns": 0, "after_ns": after, "part": part}


@pytest.mark.parametrize("optimizers", [1, 2, 3])
def test_work_of_the_recorder_between_optimizers_is_removed(optimizers: int) -> None:
    """It looks whether the step has ended, for 80 µs after each optimizer of 100 µs."""
    lines, spans, now = ["main | 100 300 | stepscope.module: net"], [("rest", 90.0)], 300
    spans += [("forward", 210.0)]
    for _ in range(optimizers):
        spans += [("rest", 2.0), ("optimizer", 100.0), ("rest", 1.0), ("recorder", 80.0)]
        lines.append(f"main | {now + 4} {now + 100} | Optimizer.step#SGD.step")
        now += 183
    end = now - 80  # the last work is that between two steps
    lines.insert(0, f"main | 0 {end} | ProfilerStep#0")
    times = {name: 1000 * sum(t for n, t in spans if n == name) for name in ("forward", "optimizer")}
    parts = {name: {"median_ns": ns, "cpu_ns": ns} for name, ns in {**times, "rest": 0}.items()}
    steps = {"count": 20, "median_ns": 1000 * end, "p10_ns": 0, "p90_ns": 0, "parts": parts}
    capture = {
        "outcome": "complete",
        "recorded_steps": {**steps, "changes": drawn_parts(spans)},
        "unrecorded_steps": steps,
    }
    runs = corrected_trace(drawn_trace("\n".join(lines), capture=capture))["stages"]
    found = float(runs["cpu_ns"][runs.text("stage").mask("optimizer")].sum()) / 1000
    assert found == pytest.approx(102 * optimizers, rel=0.05)
    assert found >= 100 * optimizers - 1


def test_python_of_a_call_before_and_after_its_operators_is_of_its_stage() -> None:
    lines = """
        main | 0 200 | ProfilerStep#0
        main | 10 40 | stepscope.module: net
        main | 60 100 | autograd::engine::evaluate_function: MmBackward0
        main | 130 170 | Optimizer.step#SGD.step
    """
    changes = {
        "parts": ["loss", "backward", "optimizer", "rest"],
        "since_unix_ns": 40_000,
        "after_ns": [0, 5_000, 80_000, 85_000, 140_000],
        "part": [0, 1, 3, 2, 3],
    }
    capture = {"outcome": "complete", "recorded_steps": {"changes": changes}}
    runs = annotate(drawn_trace(lines, capture=capture))["stages"]
    found = [(row["stage"], row["start_ns"] // 1000, row["end_ns"] // 1000) for row in runs.rows()]
    assert found == [
        ("other", 0, 10),
        ("forward", 10, 40),
        ("loss", 40, 45),
        ("backward", 45, 120),
        ("optimizer", 120, 180),
        ("other", 180, 200),
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"parts": ["rest"], "since_unix_ns": 0, "after_ns": [], "part": []},
        {"parts": ["rest"], "since_unix_ns": 0, "after_ns": [0, 1], "part": [0]},
        {"parts": ["rest"], "since_unix_ns": 0, "after_ns": [0], "part": [3]},
        {"parts": ["a new part"], "since_unix_ns": 10**18, "after_ns": [0, 5], "part": [0, 0]},
    ],
)
def test_parts_that_make_no_sense_change_nothing(changes: dict[str, object]) -> None:
    recorded = run_of(random_stages(1)).recorded
    before = corrected_trace(recorded).events["duration_ns"].tolist()
    capture = dict(recorded.metadata.capture)
    capture["recorded_steps"] = {**capture["recorded_steps"], "changes": changes}
    after = corrected_trace(recorded.with_metadata(capture=capture)).events["duration_ns"]
    assert after.tolist() == pytest.approx(before, rel=0.2)


@pytest.mark.parametrize(
    ("python_us", "clip_us", "stage"),
    [(40, 50, "optimizer"), (150, 50, "optimizer"), (400, 50, "other"), (400, 420, "optimizer")],
)
def test_python_before_clipping_belongs_to_the_optimizer(python_us: int, clip_us: int, stage: str) -> None:
    """PPO, accelerate: 0.15 ms pass between backward and the first operator of clipping.

    On a slow machine more, but then clipping itself takes as long.
    """
    clip = 300 + python_us
    done = clip + clip_us
    trace = corrected_trace(
        drawn_trace(
            f"""
        main |   0 {done + 150} | ProfilerStep#0
        main |  10 100 | stepscope.module: net
        main |  20  90 | aten::mm | seq=1
        main | 120 300 | MmBackward0 | seq=1 fwd=1
        main | {clip} {done} | aten::_foreach_norm
        main | {done + 10} {done + 150} | Optimizer.step#SGD.step
    """,
            capture={
                "recorded_steps": {
                    "changes": drawn_parts(
                        [
                            ("rest", 10),
                            ("forward", 90),
                            ("rest", 15),
                            ("backward", 185),
                            ("rest", python_us + clip_us + 5),
                            ("optimizer", 145),
                        ]
                    )
                }
            },
        )
    )
    runs = trace["stages"]
    spent = {
        name: int(runs["cpu_ns"][runs.text("stage").mask(name)].sum()) / 1000
        for name in ("backward", "optimizer", "other")
    }
    expected = {"optimizer": 150 + clip_us, "other": 10, "backward": 200}
    expected[stage] += python_us
    assert spent == pytest.approx(expected, abs=12)
