"""Captures of JAX without the cost of recording: generated runs whose true times are known.

A step calls one program, whose operations run on the threads of one to four devices of the host and
meet after each; what XLA records takes the same time for each event, on its own thread: 0.1 to
0.3 us, as measured by benchmarks/capture_jax.py.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from corrected import corrected_trace

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

STEPS = 6
TICK = 0.05  # us
SCOPES = {
    "forward": "jit(step)/jvp(Net)/dot_general",
    "backward": "jit(step)/transpose(jvp(Net))/dot_general",
    "optimizer": "jit(step)/add",
}


class Host:
    """Runs the same steps with and without recording them; times in ticks."""

    def __init__(self, cost: int, devices: int, seed: int, new_pages: int = 0) -> None:
        self.cost, self.devices, self.new_pages = cost, devices, new_pages
        self.random = random.Random(seed)
        self.lines: list[str] = []
        self.begins: list[int] = []
        self.stages = dict.fromkeys(SCOPES, 0)
        self.cpu = 0

    def run(self) -> Host:
        counts = {stage: self.random.randint(4, 12) for stage in SCOPES}
        lengths = {stage: [self.random.randint(40, 120) for _ in range(n)] for stage, n in counts.items()}
        now = 0
        for step in range(STEPS):
            self.begins.append(now)
            now = self._step(step, now, lengths)
        self.begins.append(now)
        return self

    def _step(self, step: int, now: int, lengths: dict[str, list[int]]) -> int:
        call = now + 10
        self._draw("main", call, call + 20, "PjitFunction(step) | cat=runtime")
        now = call + 20
        for stage, scope in SCOPES.items():
            begin = now
            pages = self.new_pages if stage == "optimizer" else 0
            for length in lengths[stage]:
                now = self._operation(now, length + pages, step + 1, scope)
            self.stages[stage] += now - begin
        self._draw("main", call + 20, now, "CommonPjRtBuffer::Await | cat=runtime")
        return now + 30

    def _operation(self, begin: int, length: int, run: int, scope: str) -> int:
        for device in range(self.devices):
            end = begin + length + (device * 7) % 11
            self._draw(f"pool {device}", begin, end, f"dot | cat=cpu_op corr={run} scope={scope}")
            self.cpu += length + self.cost
        return begin + length + self.cost + max((one * 7) % 11 for one in range(self.devices))

    def _draw(self, track: str, begin: int, end: int, event: str) -> None:
        self.lines.append(f"{track} | {TICK * begin} {TICK * end} | {event}")

    def times(self) -> dict[str, object]:
        median = float(np.median([after - before for before, after in pairwise(self.begins)]))
        return {
            "count": STEPS,
            "median_ns": round(1000 * TICK * median),
            "parts": {},
            "process_cpu_ns": round(1000 * TICK * self.cpu / STEPS),
        }


def run_of(cost: int, devices: int, seed: int, new_pages: int = 0) -> tuple[Trace, Host]:
    """A capture before annotation, and the same run without recording.

    Each operation of a recorded optimizer is longer by `new_pages`, besides its cost.
    """
    slow = Host(cost, devices, seed, new_pages).run()
    fast = Host(0, devices, seed).run()
    capture = {"outcome": "complete", "recorded_steps": slow.times(), "unrecorded_steps": fast.times()}
    return drawn_trace("\n".join(slow.lines), capture=capture, framework="jax"), fast


def stage_ticks(trace: Trace, stage: str) -> float:
    runs = trace["stages"]
    return float(runs["cpu_ns"][runs.text("stage").mask(stage)].sum()) / 1000 / TICK


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("cost", [2, 4, 6])
@pytest.mark.parametrize("seed", range(4))
def test_steps_and_stages_are_as_long_as_unrecorded(cost: int, devices: int, seed: int) -> None:
    recorded, truth = run_of(cost, devices, seed)
    corrected, raw = corrected_trace(recorded), annotate(recorded)
    true_ms = truth.times()["median_ns"]
    assert float(np.median(step_lengths(corrected["steps"]))) == pytest.approx(true_ms, rel=0.01)
    for stage, time in truth.stages.items():
        assert stage_ticks(corrected, stage) == pytest.approx(time, rel=0.03)
        assert stage_ticks(raw, stage) > stage_ticks(corrected, stage)


def test_order_and_nesting_hold() -> None:
    recorded, _ = run_of(6, 4, 1)
    corrected = corrected_trace(recorded)
    assert (corrected.events["duration_ns"] >= 0).all()
    for track in range(len(corrected["tracks"])):
        here = corrected.events["track"] == track
        start = corrected.events["start_ns"][here]
        assert (np.diff(start) >= 0).all()


def limited(recorded: Trace, cpu_ns: int) -> Trace:
    capture = dict(recorded.metadata.capture)
    unrecorded = capture["unrecorded_steps"]
    capture["recorded_steps"] = {
        **capture["recorded_steps"],
        "process_cpu_ns": unrecorded["process_cpu_ns"] + cpu_ns,
    }
    return recorded.with_metadata(capture=capture)


@pytest.mark.parametrize(
    ("change", "removed_ns"),
    [(lambda trace: limited(trace, 2_000), 2_000), (lambda trace: limited(trace, -5_000), 0)],
    ids=["its steps took 2 us more CPU time", "they took less"],
)
def test_no_more_is_removed_than_cpu_time_grew(change: Callable[[Trace], Trace], removed_ns: int) -> None:
    """A loop that may not run ahead while it is recorded is slower for another reason."""
    found = corrected_trace(change(run_of(6, 2, 1)[0]))
    assert found.metadata.recording_cost["removed_ns"] == pytest.approx(removed_ns, rel=0.01)


@pytest.mark.parametrize("new_pages", [100, 400, 2000])
@pytest.mark.parametrize("seed", range(4))
def test_what_events_cannot_have_cost_stays_where_it_is(new_pages: int, seed: int) -> None:
    """Memory is new to recorded steps, so their optimizer is longer; other stages are not."""
    recorded, truth = run_of(4, 1, seed, new_pages)
    corrected, raw = corrected_trace(recorded), annotate(recorded)
    for stage in ("forward", "backward"):
        assert stage_ticks(corrected, stage) == pytest.approx(truth.stages[stage], rel=0.04)
    left = stage_ticks(corrected, "optimizer") / stage_ticks(raw, "optimizer")
    assert 0.95 < left < 1


def test_a_gpu_works_as_long_as_it_did() -> None:
    lines = []
    for step in range(STEPS):
        at = 1000 * step
        lines += [
            f"main | {at} {at + 400} | PjitFunction(step) | cat=runtime",
            f"main | {at + 100} {at + 110} | cuLaunchKernel | corr={step + 1}",
            f"stream 7 | {at + 150} {at + 750} | fusion | corr={step + 1}",
        ]
    capture = {
        "outcome": "complete",
        "recorded_steps": {"median_ns": 1_000_000, "process_cpu_ns": 500_000},
        "unrecorded_steps": {"count": 9, "median_ns": 950_000, "process_cpu_ns": 450_000},
    }
    found = corrected_trace(drawn_trace("\n".join(lines), capture=capture, framework="jax"))
    kernels = found.events["duration_ns"][found.events.text("name").mask("fusion")]
    assert kernels.tolist() == [600_000] * STEPS
