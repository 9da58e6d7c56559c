"""Memory recorded without addresses: totals over time, and never a lifetime that is a guess."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from drawn_memory import STEP, with_allocations
from rich.console import Console

import stepscope
from stepscope.errors import TraceError
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.models.memory import memory_facts
from stepscope.models.memory.history import MemoryChanges
from stepscope.models.memory.memory_findings import find_problems
from stepscope.models.memory.memory_text import print_memory, verdict
from stepscope.models.memory.recorded_memory import recorded_memory
from stepscope.trace.concat import concat
from stepscope.trace.table import Text

ALLOCATIONS = """
    cuda:0 |   7 195 | 1000
    cuda:0 |  16 139 | 4000
    cuda:0 |   - 119 | 2000
    cuda:0 | 130   - |  500
"""


@pytest.mark.parametrize("seed", range(20))
def test_the_peak_is_the_same_with_and_without_addresses(seed: int) -> None:
    chance = np.random.default_rng(seed)
    begins = chance.choice(np.arange(1, 100), 30, replace=False)
    lines = [
        f"cpu | {begin} {begin + chance.integers(1, 90)} | {chance.integers(1, 9999)}" for begin in begins
    ]
    known, unknown = (
        memory_facts(with_allocations(STEP, "\n".join(lines), addresses=addresses))[0]
        for addresses in (True, False)
    )
    assert (unknown.peak_bytes, unknown.peak_ns) == (known.peak_bytes, known.peak_ns)
    assert (known.has_lifetimes, unknown.has_lifetimes) == (True, False)


def test_nothing_is_said_of_lines_modules_and_growth() -> None:
    (facts,) = memory_facts(with_allocations(STEP, ALLOCATIONS, addresses=False))
    assert (facts.peak_bytes, facts.peak_ns) == (6500, 16_000)  # at least: 500 were never released
    assert [(one.name, one.bytes) for one in facts.kinds] == [("unknown", 6500)]
    assert (facts.lines, facts.modules, facts.stages, facts.growth) == ((), (), (), ())
    assert find_problems(facts) == []


def test_the_text_says_what_to_record_instead_of_a_table_of_one_unknown() -> None:
    (facts,) = memory_facts(with_allocations(STEP, ALLOCATIONS, addresses=False))
    assert "`stepscope run --memory` records both" in verdict(facts, [])
    console = Console(record=True, file=StringIO())
    print_memory(console, facts)
    text = console.export_text()
    assert "by kind" not in text
    assert "No problem" not in text


def test_what_was_there_before_is_at_least_what_is_released() -> None:
    trace = with_allocations(STEP, ALLOCATIONS, addresses=False)
    levels = MemoryChanges.of_kinds(trace, "cuda:0").levels
    assert levels[0] == 1500  # 2000 were, less what the recording added first
    assert levels.min() == 0


def test_kinds_are_the_recorded_categories() -> None:
    trace = with_allocations(STEP, ALLOCATIONS, addresses=False)
    names = ["inputs", "activations", "weights", "gradients", "activations", "something else"]
    memory = trace["memory"].with_columns(category=Text.of(names))
    (facts,) = memory_facts(trace.with_table(memory))
    held = {one.name: one.bytes for one in facts.kinds}
    assert sum(held.values()) == facts.peak_bytes
    assert held["activations"] == 4000


def test_lifetimes_of_them_are_refused() -> None:
    trace = with_allocations(STEP, ALLOCATIONS, addresses=False)
    with pytest.raises(TraceError, match="allocations of cuda:0 without addresses"):
        recorded_memory(trace)


def test_ranks_do_not_add_up() -> None:
    traces = [with_allocations(STEP, ALLOCATIONS, rank, addresses=False) for rank in (0, 1)]
    with pytest.raises(TraceError, match="2 ranks"):
        memory_facts(concat(traces))


def test_a_trace_of_2021(traces: Path) -> None:
    path = traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"
    result = CliRunner().invoke(stepscope_command, ["memory", str(path), "--json"])
    gpu, cpu = json.loads(result.stdout)
    table = stepscope.open(path)["memory"]
    for device in (gpu, cpu):
        mine = table["bytes"][table.text("device").mask(device["device_name"])]
        level = np.append(0, np.cumsum(mine))
        assert device["peak_bytes"] == level.max() - level.min()
        assert not device["has_lifetimes"]
