"""Parts that run in every n-th step, such as an evaluation: built recordings whose truth is known.

A program runs with and without recording. Its timers are what the recorder has, with noise.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from corrected import corrected_trace
from test_corrected_times import Call, Machine, random_call, random_stages

from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.record.part_timer import PARTS
from stepscope.record.step_times import Reading, StepReadings
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

US = 1_000
TIMED = 40  # steps after the recording
NOISE = 0.03  # of the time of operators, from step to step
KINDS = {
    "evaluation": ("evaluation", "stepscope.evaluation: evaluate (train.py:9)"),
    "logging": ("rest", "aten::histc"),  # without gradients and outside of any module
    "second loss": ("forward", "stepscope.module:critic"),
}


@dataclass
class Program:
    """Stages of every step, and a part that every `period`-th step runs besides."""

    stages: dict[str, Call]
    rare: Call
    part: str
    period: int
    recorded: int  # steps
    own_us: float = 0.0  # of the recorder in each recorded step

    def run(self, machine: Machine, first: int, count: int) -> StepReadings:
        """Some steps; the CPU time of each, as a timer has it."""
        readings = StepReadings()
        for step in range(first, first + count):
            parts = dict.fromkeys(PARTS, 0)
            begin, at = machine.now, len(machine.lines)
            machine.lines.append("")
            machine.slower = random.Random(step).gauss(1, NOISE)
            calls = list(self.stages.items())
            if step % self.period == self.period - 1:
                calls.append((self.part, self.rare))
            for part, call in calls:
                entered = machine.now
                machine.call(call)
                parts[part] += round(US * (machine.now - entered))
            between = 1 + self.own_us * (machine.before > 0)
            machine.now += between
            parts["rest"] += round(US * between)
            machine.lines[at] = f"main | {begin} {machine.now} | ProfilerStep#{step}"
            readings.steps.append(self._readings(parts))
        return readings

    def _readings(self, parts: dict[str, int]) -> tuple[Reading, Reading]:
        total = sum(parts.values())
        times = {name: (ns, ns) for name, ns in parts.items()}
        return Reading(0, 0, 0, dict.fromkeys(PARTS, (0, 0))), Reading(total, total, total, times)


def program(seed: int) -> Program:
    chance = random.Random(seed)
    part, name = list(KINDS.values())[seed % len(KINDS)]
    times = chance.choice([20, 60, 200])
    inside = [random_call(chance, f"aten::op{n % 7}", 2, kernels=False) for n in range(times)]
    rare = Call(name, [chance.uniform(2, 9) for _ in range(times + 1)], inside)
    return Program(random_stages(seed), rare, part, chance.choice([2, 3, 4, 7, 15]), chance.choice([3, 4, 6]))


def run_of(
    seed: int,
    each_ns: float,
    first: int = 5,
    later: int = TIMED,
    run_shares: Any = None,
    program: Callable[[int], Program] = program,
) -> tuple[Trace, list[float]]:
    """A recorded trace before annotation, and the true lengths of its steps, µs."""
    slow, fast = Machine(recorded=True), Machine(recorded=False)
    slow.before, slow.after = 0.7 * each_ns / US, 0.3 * each_ns / US
    ran = program(seed)
    recorded = ran.run(slow, first, ran.recorded)
    unrecorded = ran.run(Machine(recorded=False), first + ran.recorded + 1, later)
    capture = {
        "outcome": "complete",
        "recorded_steps": {**(recorded.describe() or {}), "each": recorded.describe_each()},
        "unrecorded_steps": unrecorded.describe_kinds(),
        "run_shares": run_shares,
    }
    truth = [ns / US for ns in ran.run(fast, first, ran.recorded).lengths_ns]
    return drawn_trace("\n".join(slow.lines), capture=capture), truth


def saving_program(seed: int) -> Program:
    """A checkpoint that takes about a tenth of a step, in few events."""
    chance = random.Random(seed)
    stages = {
        **random_stages(seed),
        "rest": Call("aten::select", [4.0, 2.0], [Call("aten::as_strided", [2.0])]),
    }
    stages["backward"].inside.append(random_call(chance, "aten::mm", 4, kernels=False))
    stages["backward"].gaps.append(300.0)
    inside = [Call("aten::detach", [2.0]) for _ in range(chance.choice([10, 20]))]
    saved = Call("stepscope.checkpointing: save (train.py:9)", [5.0] * len(inside) + [60.0], inside)
    return Program(stages, saved, "rest", chance.choice([2, 3, 4, 7]), 9, own_us=30.0)


@pytest.mark.parametrize("seed", range(12))
def test_a_checkpoint_of_few_events_costs_what_these_do(seed: int) -> None:
    """It is a tenth of the step, so that steps with and without it are compared with the same times.

    Where in a step the 30 µs are that the recorder works is not known.
    """
    recorded, _ = run_of(seed, 1000.0, program=saving_program)
    saved = saving_program(seed).rare
    truth = sum(saved.gaps) + sum(sum(call.gaps) for call in saved.inside)
    runs = corrected_trace(recorded)["stages"]
    found = runs["cpu_ns"][runs.text("stage").mask("checkpointing")] / US
    assert found == pytest.approx(np.full(len(found), truth), abs=40)


def place(median_ns: int) -> dict[str, Any]:
    """What the run's clock has of an evaluation."""
    return {"places": [{"function": "evaluate", "file": "train.py", "line": 9, "median_ns": median_ns}]}


def test_an_evaluation_that_no_timed_step_has_is_known_from_the_run() -> None:
    """Every 15th step evaluates: that is recorded, and the 3 steps that follow do not."""
    seed = next(seed for seed in range(0, 300, 3) if program(seed).period == 15)
    _, truth = run_of(seed, 1000.0, first=14, later=3)
    usual = round(US * (max(truth) - np.median(truth)))
    recorded, _ = run_of(seed, 1000.0, first=14, later=3, run_shares=place(usual))
    corrected = corrected_trace(recorded)
    found = step_lengths(corrected["steps"]) / US
    assert corrected.metadata.recording_cost["estimated_steps"] == 1
    assert found == pytest.approx(truth, rel=0.10)


def test_without_it_the_other_steps_show_what_an_event_costs() -> None:
    seeds = range(1, 300, 3)
    seed = next(
        seed for seed in seeds if program(seed).period == 15 and len(program(seed).rare.inside) == 200
    )
    recorded, truth = run_of(seed, 1000.0, first=14, later=3)
    corrected = corrected_trace(recorded)
    assert corrected.metadata.recording_cost["estimated_steps"] == 1
    assert step_lengths(corrected["steps"]) / US == pytest.approx(truth, rel=0.4)


def jax_lengths(seed: int, each_ns: int, steps: range, lines: list[str]) -> StepReadings:
    """Steps of a JAX program on one device of the host; every n-th also evaluates in a second program."""
    chance = random.Random(seed)
    train, evaluate = ([chance.randint(2000, 6000) for _ in range(count)] for count in (25, 250))
    period, now = chance.choice([2, 3, 5]), 0
    readings = StepReadings()
    for step in steps:
        begin, slower = now, random.Random(step).gauss(1, NOISE)
        programs = [("step", train, "jvp(Net)")]
        programs += [("evaluate", evaluate, "Net")] if step % period == period - 1 else []
        for run, (name, lengths, scope) in enumerate(programs):
            call = f"PjitFunction({name}) | cat=runtime"
            lines.append(f"main | {now / US} {(now + 1000) / US} | {call}")
            if name == "step":
                lines.append(f"main | {(now + 900) / US} {(now + 950) / US} | stepscope.step#step_num={step}")
            begun = now = now + 1000
            for length in lengths:
                end = now + round(slower * length)
                operation = f"dot | cat=cpu_op corr={2 * step + run} scope=jit({name})/{scope}/dot_general"
                lines.append(f"pool | {now / US} {end / US} | {operation}")
                now = end + each_ns
            lines.append(f"main | {begun / US} {now / US} | CommonPjRtBuffer::Await | cat=runtime")
        now += 1000
        spent = now - begin
        readings.steps.append((Reading(0, 0, 0, {}), Reading(spent, 0, spent, {})))
    # The call that ends the last step is recorded, too.
    lines.append(f"main | {now / US} {(now + 1000) / US} | PjitFunction(step) | cat=runtime")
    lines.append(f"main | {(now + 900) / US} {(now + 950) / US} | stepscope.step#step_num={steps.stop}")
    return readings


@pytest.mark.parametrize("each_ns", [100, 300])
@pytest.mark.parametrize("seed", range(4))
def test_steps_of_jax_are_as_long_as_unrecorded(seed: int, each_ns: int) -> None:
    check_jax(seed, each_ns)


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4, 40))
def test_steps_of_the_family_of_jax_are_as_long_as_unrecorded(seed: int) -> None:
    for each_ns in (100, 200, 300):
        check_jax(seed, each_ns)


def check_jax(seed: int, each_ns: int) -> None:
    lines: list[str] = []
    recorded = jax_lengths(seed, each_ns, range(5, 10), lines)
    capture = {
        "outcome": "complete",
        "recorded_steps": {**(recorded.describe() or {}), "each": recorded.describe_each()},
        "unrecorded_steps": jax_lengths(seed, 0, range(11, 41), []).describe_kinds(),
    }
    trace = drawn_trace("\n".join(lines), capture=capture, framework="jax")
    truth = np.array(jax_lengths(seed, 0, range(5, 10), []).lengths_ns)
    found = step_lengths(corrected_trace(trace)["steps"])
    assert found.sum() == pytest.approx(truth.sum(), rel=0.10)


FAMILY = [(seed, each_ns) for seed in range(36) for each_ns in (400.0, 1000.0, 2500.0)]
QUICK = FAMILY[::13]


def check(seed: int, each_ns: float) -> None:
    recorded, truth = run_of(seed, each_ns)
    found = step_lengths(corrected_trace(recorded)["steps"]) / US
    assert found == pytest.approx(truth, rel=0.10), (seed, each_ns)
    assert found.mean() == pytest.approx(np.mean(truth), rel=0.06), (seed, each_ns)


def test_each_step_is_as_long_as_unrecorded() -> None:
    for seed, each_ns in QUICK:
        check(seed, each_ns)


@pytest.mark.full(every=3)
@pytest.mark.parametrize("seed", range(36))
def test_each_step_of_the_family_is_as_long_as_unrecorded(seed: int) -> None:
    for each_ns in (400.0, 1000.0, 2500.0):
        check(seed, each_ns)
