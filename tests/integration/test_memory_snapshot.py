"""The shared memory snapshot, against PyTorch's own functions."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import stepscope
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.models.memory import memory_facts
from stepscope.models.memory.memory_findings import find_problems

pytest.importorskip("torch")
from torch.cuda import _memory_viz


@pytest.fixture(scope="module")
def path(traces: Path) -> Path:
    return traces / "memory_snapshots" / "transformer_cuda.pickle"


@pytest.fixture(scope="module")
def snapshot(path: Path) -> Any:
    return pickle.loads(path.read_bytes())  # a file of this project's own collection


def test_each_segment_has_the_totals_that_pytorch_counts(path: Path, snapshot: Any) -> None:
    trace = stepscope.open(path, cache=False)
    blocks, segments = trace["blocks"], trace["segments"]
    active = blocks.text("state").mask("active_allocated")
    counted = np.bincount(blocks["segment"][active], blocks["bytes"][active], len(segments))
    expected = [_memory_viz.calc_active(segment) for segment in snapshot["segments"]]
    assert counted.astype(int).tolist() == expected
    assert segments["bytes"].tolist() == [one["total_size"] for one in snapshot["segments"]]
    assert np.bincount(blocks["segment"], blocks["bytes"]).tolist() == segments["bytes"].tolist()


def test_every_entry_of_the_history_is_there(path: Path, snapshot: Any) -> None:
    events = stepscope.open(path, cache=False)["memory_events"]
    entries = snapshot["device_traces"][0]
    assert list(events.text("action")) == [entry["action"] for entry in entries]
    for column, key in (("address", "addr"), ("bytes", "size"), ("stream", "stream")):
        assert events[column].tolist() == [entry[key] for entry in entries]


def test_the_stacks_are_the_recorded_ones(path: Path, snapshot: Any) -> None:
    trace = stepscope.open(path, cache=False)
    events, stacks = trace["memory_events"], trace["stacks"]
    frames = list(stacks.rows())
    for row in (0, 100, 2000):
        found, at = [], int(events["stack"][row])
        while at >= 0:
            found.append((frames[at]["function"], frames[at]["file"], frames[at]["line"]))
            at = -1 if frames[at]["parent"] is None else frames[at]["parent"]
        recorded = snapshot["device_traces"][0][row]["frames"]
        assert found == [(one["name"], one["filename"], one["line"]) for one in recorded]


@pytest.mark.parametrize("command", ["analyze", "contexts", "whatif"])
def test_other_commands_say_which_one_to_use(path: Path, command: str) -> None:
    result = CliRunner().invoke(stepscope_command, [command, str(path)])
    assert result.exit_code == 2
    assert result.stderr.endswith(f"use: stepscope memory {path}\n")


def test_a_report_of_it_is_that_of_its_memory(path: Path) -> None:
    def printed(*words: str) -> str:
        return CliRunner().invoke(stepscope_command, [*words, str(path)]).stdout

    assert printed() == printed("report") == printed("memory") != ""
    assert printed("report", "--json") == printed("memory", "--json")


def test_the_command_prints_facts_and_findings(path: Path) -> None:
    result = CliRunner().invoke(stepscope_command, ["memory", str(path), "--json"])
    (facts,) = json.loads(result.stdout)
    assert facts["fragmentation"]["reserved"] == 14_180_941_824
    assert [finding["rule"] for finding in facts["findings"]] == ["activations"]
    text = CliRunner().invoke(stepscope_command, ["memory", str(path)]).stdout
    assert "Activations hold 88% of it." in text


def test_the_peak_is_that_of_a_walk_over_the_history(path: Path, snapshot: Any) -> None:
    facts = memory_facts(stepscope.open(path, cache=False))[0]
    entries = snapshot["device_traces"][0]
    starts = {"alloc": 1, "free_completed": -1}
    changes = np.cumsum([starts.get(one["action"], 0) * one["size"] for one in entries])
    in_use = [
        block
        for segment in snapshot["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    before = sum(block["size"] for block in in_use) - changes[-1]
    # Blocks are rounded up to 512 bytes, the history tells what was asked for.
    assert abs(facts.peak_bytes - (before + changes.max())) < 512 * len(in_use)
    assert [one.rule for one in find_problems(facts)] == ["activations"]
