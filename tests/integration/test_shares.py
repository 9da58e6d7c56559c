"""No command prints a share above 100 %: numerator and denominator are of the same steps.

Generated recordings have a part in some steps, delays of a busy machine, compilation in one step,
and several devices of the host; the shared ones are of real programs.
"""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

import stepscope
from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.analyze.findings_text import print_findings
from stepscope.errors import StepscopeError
from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.steps.step_table import ranks_with_steps
from stepscope.facts.correct import without_recording_cost
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import print_report
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

SUFFIXES = (".json", ".gz", ".pb", ".sqlite")
LARGE = 120_000  # events
# A rate may be above its peak, as with Winograd, and a change is no share.
_SHARE = re.compile(r"(?<![+\d.])(\d+(?:\.\d+)?) ?%")
_OTHERS = ("of_peak", "utilization", "mfu", "hfu", "recording_cost", "capture", "replay_error")


def test_no_share_of_generated_recordings_is_above_one() -> None:
    for seed in range(24):
        check(f"seed {seed}", drawn(seed))


@pytest.mark.full(every=3)
@pytest.mark.parametrize("first", range(24, 264, 24))
def test_no_share_of_the_family_is_above_one(first: int) -> None:
    for seed in range(first, first + 24):
        check(f"seed {seed}", drawn(seed))


@pytest.mark.full
def test_no_share_of_shared_recordings_is_above_one(traces: Path) -> None:
    opened = 0
    for path in sorted(traces.rglob("*")):
        if path.is_file() and path.name.endswith(SUFFIXES):
            try:
                trace = stepscope.open(path, cache=False)
            except StepscopeError:
                continue
            if len(trace["steps"]) and len(trace.events) < LARGE:
                check(path.name, trace)
                opened += 1
    assert opened > 15


def check(name: str, trace: Trace) -> None:
    rank = ranks_with_steps(trace)[0]
    summary, analysis = summarize(trace, rank), analysis_of(RuleContext(trace, rank), RULES)
    for where, share in shares_in(msgspec.to_builtins(summary), ""):
        assert share <= 1.005, (name, where, share)
    for finding in analysis.findings:
        assert finding.share <= 1.0, (name, finding.rule)
    for text in printed(summary, analysis):
        above = [line for line in text.splitlines() for share in _SHARE.findall(line) if float(share) > 100]
        assert not above, (name, above)


def shares_in(value: Any, where: str) -> Iterator[tuple[str, float]]:
    """Every number whose name says that it is a share."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _OTHERS:
                continue
            if "share" in key and isinstance(inner, float):
                yield f"{where}.{key}", inner
            yield from shares_in(inner, f"{where}.{key}")
    elif isinstance(value, list):
        for inner in value:
            yield from shares_in(inner, where)


def printed(summary: Any, analysis: Any) -> Iterator[str]:
    kernels = [replace(kernel, of_peak=None) for kernel in summary.kernels]
    summary = replace(summary, kernels=kernels)
    for width in (80, 140):
        console = Console(file=io.StringIO(), width=width)
        print_report(console, [summary])
        print_findings(console, analysis, every=True)
        yield console.file.getvalue()  # type: ignore[attr-defined]


def drawn(seed: int) -> Trace:
    """A capture of three to six steps."""
    chance = random.Random(seed)
    lines = list((jax_steps if seed % 3 == 2 else torch_steps)(chance))
    framework = "jax" if seed % 3 == 2 else "pytorch"
    length = 1e6 * chance.uniform(1, 30)
    parts = {"rest": {"median_ns": length, "p10_ns": length, "p90_ns": length, "cpu_ns": length}}
    elapsed = {"elapsed_ns": 3 * length, "queued_ns": chance.choice([0, 0.5, 1.5]) * length}
    times = {"count": 20, "median_ns": length, "cpu_ns": length, "parts": parts, **elapsed}
    capture = {"outcome": "complete", "framework": framework, "recorded_steps": times}
    if chance.random() < 0.5:
        capture["unrecorded_steps"] = {**times, "median_ns": length / 2}
    recorded = drawn_trace("\n".join(lines), capture=capture, framework=framework)
    return annotate(without_recording_cost(recorded))


def torch_steps(chance: random.Random) -> Iterator[str]:
    now = 0.0
    for step in range(chance.randint(3, 6)):
        begin, inside = now, list[str]()

        def run(name: str, count: int, inside: list[str] = inside) -> None:
            nonlocal now
            begun = now
            for number in range(count):
                length = chance.uniform(5, 60) * chance.choice(
                    [1] * 30 + [500]
                )  # now and then without a core
                inside.append(f"main | {now + 1} {now + 1 + length} | aten::op{number % 5}")
                now += length + chance.choice([2, 2, 2, 2500])
            inside.append(f"main | {begun} {now} | {name}")
            now += 1

        if chance.random() < 0.5:
            run("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", chance.randint(1, 30))
        run("stepscope.module:net", chance.randint(1, 20))
        run("autograd::engine::evaluate_function: MmBackward0", chance.randint(1, 20))
        run("Optimizer.step#SGD.step", chance.randint(1, 8))
        if step % 3 == 2:
            run("stepscope.evaluation: evaluate (train.py:9)", chance.choice([10, 100, 300]))
        if chance.random() < 0.2:
            run("stepscope.checkpointing: save (train.py:12)", chance.choice([1, 20]))
        yield from inside
        yield f"main | {begin} {now} | ProfilerStep#{step}"


def jax_steps(chance: random.Random) -> Iterator[str]:
    now, devices = 0.0, chance.choice([1, 2, 4, 8])
    scopes = ("jvp(Net)/dot_general", "transpose(jvp(Net))/dot_general", "add")
    for step in range(chance.randint(3, 6)):
        yield f"main | {now + 10} {now + 30} | PjitFunction(step) | cat=runtime"
        begun = now = now + 30
        for scope in scopes:
            for _ in range(chance.randint(2, 12)):
                length = chance.uniform(10, 400)
                for device in range(devices):
                    end = now + length * chance.uniform(0.7, 1)
                    facts = f"cat=cpu_op corr={step + 1} scope=jit(step)/{scope}"
                    yield f"pool {device} | {now} {end} | dot | {facts}"
                now += length
        yield f"main | {begun} {now} | CommonPjRtBuffer::Await | cat=runtime"
        now += chance.choice([5, 3000])
