"""The memory of drawn steps: whose it is, what fills it, and what is advised."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from drawn_memory import STEP, with_allocations
from model_allocator import MIB
from msgspec.structs import replace

from stepscope.errors import TraceError
from stepscope.faces.terminal.commands import stepscope as stepscope_command
from stepscope.graph import build_ranks
from stepscope.models.memory import MemoryFacts, memory_facts
from stepscope.models.memory.device_facts import MemoryShare
from stepscope.models.memory.memory_findings import find_problems
from stepscope.models.memory.memory_text import compare_memory, verdict
from stepscope.models.memory.recorded_memory import recorded_memory
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.changes.batch_size import with_batch
from stepscope.models.whatif.prediction import Baseline
from stepscope.trace.concat import concat
from stepscope.trace.memory_schema import TENSOR_USES
from stepscope.trace.table import Table, Text

PLAIN = """
    cpu |   7 195 | 1000
    cpu |  16 139 | 4000
    cpu |  46 119 | 2000
    cpu | 130   - |  500
"""


def facts_of(allocations: str, **properties: object) -> MemoryFacts:
    trace = with_allocations(STEP, allocations)
    return memory_facts(trace.with_metadata(properties=properties))[0]


def test_each_device_counts_its_own_entries() -> None:
    trace = with_allocations(STEP, PLAIN + "cuda:0 | 17 - | 64\ncuda:1 | 18 138 | 32")
    assert {facts.device_name: facts.entries for facts in memory_facts(trace)} == {
        "cpu": 7,
        "cuda:0": 1,
        "cuda:1": 2,
    }


def test_what_was_not_recorded_is_not_stated() -> None:
    facts = facts_of(PLAIN)
    assert facts.reserved_peak_bytes is None
    assert facts.fragmentation is None


def test_only_what_was_there_before_the_recording_is_said_to_be() -> None:
    facts = facts_of(PLAIN + "cpu | - 170 | 300\ncpu | 155 156 | 9000")
    held = {share.name: share.bytes for share in facts.stages}
    assert held["before the recorded steps"] == 300
    assert held[""] == 9000  # between backward and the optimizer


@pytest.mark.parametrize(
    ("allocations", "peak", "before"),
    [
        # Another thread allocates what this one releases, as with DataParallel: one after the other.
        ("cpu | - 20 | 4096 | 9\ncpu | - 60 | 4096 | 9\ncpu | - 100 | 4096 | 9", 4096, 4096),
        ("cpu | 10 20 | 4096 | 9\ncpu | - 60 | 4096 | 9", 4096, 0),
        ("cpu | 10 20 | 512 | 9\ncpu | - 60 | 4096 | 9\ncpu | 30 50 | 512 | 8", 4608, 0),
        # Another thread releases what this one allocates.
        ("cpu | 10 - | 4096 | 9\ncpu | 50 - | 4096 | 9", 4096, 0),
        ("cpu | 10 - | 4096 | 9\ncpu | 50 70 | 4096 | 9", 4096, 0),
        ("cpu | 10 - | 4096 | 9\ncpu | 50 - | 4096 | 8", 8192, 0),
    ],
)
def test_what_other_threads_do_at_an_address_is_between_what_is_recorded_there(
    allocations: str, peak: int, before: int
) -> None:
    facts = facts_of(allocations)
    assert facts.peak_bytes == peak
    held = {share.name: share.bytes for share in facts.stages}
    assert held.get("before the recorded steps", 0) == before


@pytest.mark.parametrize(
    ("failed", "text"),
    [
        ({}, "Out of memory: memory was requested, with 500 B allocated."),
        ({"requested_bytes": 4096}, "Out of memory: 4.1 kB were requested, with 500 B allocated."),
        (
            {"file": "train.py", "line": 3, "module": "net"},
            "Out of memory: memory was requested at train.py:3 in net, with 500 B allocated.",
        ),
    ],
)
def test_an_out_of_memory_error_is_told_as_far_as_it_is_known(failed: dict[str, object], text: str) -> None:
    unknown = {"device": "cpu", "requested_bytes": None, "file": "", "line": 0, "module": ""}
    facts = facts_of(PLAIN, out_of_memory=unknown | failed)
    assert verdict(facts, []) == text


# -- with other numbers of samples

INFERENCE = """
    main |   0 200 | ProfilerStep#0
    main |   5   9 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main |   6   8 | aten::stack
    main |  10  90 | ## forward ##
    main |  15  30 | aten::mm
    main |  45  60 | aten::exp
    main | 120 130 | aten::add
"""


@pytest.mark.parametrize(
    ("step", "allocations", "peak", "twice"),
    [
        # The input, two activations and a temporary; a gradient stays, as what was there before.
        (STEP, PLAIN + "cpu | 47 50 | 100\ncpu | - 195 | 300", 7400, 14500),
        (STEP, "cpu | - 195 | 300\ncpu | 126 - | 5000\ncpu | 127 129 | 1000", 6300, 7300),
        # An activation may be as large as a gradient.
        (STEP, "cpu | 16 195 | 5000\ncpu | 126 - | 5000", 10000, 15000),
        (
            INFERENCE,
            "cpu | - 195 | 300\ncpu | 7 195 | 1000\ncpu | 16 99 | 4000\ncpu | 46 99 | 2000",
            7300,
            14300,
        ),
        # Of no stage that is known, within a step; a state that stays is not of the samples.
        (INFERENCE, "cpu | - 195 | 300\ncpu | 121 125 | 4000\ncpu | 122 - | 700", 5000, 9000),
    ],
)
def test_without_what_operators_read_all_that_a_step_makes_grows_with_its_samples(
    step: str, allocations: str, peak: int, twice: int
) -> None:
    graph = build_ranks(with_allocations(step, allocations))
    found = Baseline(graph).predict([parse_request("batch_size:factor=2", CHANGES)])[0]
    assert found.memory is not None
    assert (found.memory.measured_bytes, found.memory.predicted_bytes) == (peak, twice)
    assert found.memory.error is None
    assert any("the file does not show what depends on the input data" in text for text in found.assumptions)


def test_what_a_kernel_fills_that_no_operator_shows_grows_with_the_samples() -> None:
    """As the result of a kernel of Triton; what another operator makes of nothing is as it was."""
    step = STEP.replace("aten::exp ", "aten::empty") + "main | 62 70 | aten::ones"
    trace = with_allocations(
        step, "cpu | 7 195 | 1000\ncpu | 16 139 | 4000\ncpu | 46 119 | 2000\ncpu | 63 118 | 50"
    )
    (reader,) = np.flatnonzero(trace.events.text("name").mask("aten::mm"))
    uses = {"event": [reader], "time_ns": [15000], "address": [512], "shape": Text.of(["8,125"])}
    trace = trace.with_table(Table(TENSOR_USES, uses | {"dtype": Text.of(["float32"])}))
    changed = with_batch(recorded_memory(trace), 2.0).lifetimes
    assert changed.bytes[:4].tolist() == [2000, 8000, 4000, 50]


# -- ranks


def test_allocations_of_several_processes_are_not_mixed() -> None:
    job = concat([with_allocations(STEP, PLAIN, rank=rank) for rank in (0, 1)])
    with pytest.raises(TraceError, match=r"holds the allocations of 2 ranks.*open the file of one"):
        recorded_memory(job)
    with pytest.raises(TraceError, match="2 ranks"):
        memory_facts(job)
    assert Baseline(build_ranks(job)).memory is None


def ranks_of_a_job(folder: Path) -> str:
    """Traces of two ranks with the allocations of a step."""
    folder.mkdir()
    for rank in (0, 1):
        events = [
            {
                "ph": "X",
                "name": "ProfilerStep#0",
                "cat": "user_annotation",
                "pid": 1,
                "tid": 1,
                "ts": 0,
                "dur": 100,
            },
            {"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 5, "dur": 9},
            {
                "ph": "i",
                "name": "[memory]",
                "s": "t",
                "pid": 1,
                "tid": 1,
                "ts": 7,
                "args": {"Addr": 64, "Bytes": 512, "Device Type": 0, "Device Id": -1},
            },
        ]
        text = {"traceEvents": events, "distributedInfo": {"rank": rank, "world_size": 2}}
        (folder / f"rank{rank}.json").write_text(json.dumps(text))
    return str(folder)


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_diff_of_jobs_compares_steps_and_says_that_memory_is_not_compared(
    options: list[str], tmp_path: Path
) -> None:
    sides = [ranks_of_a_job(tmp_path / name) for name in ("before", "after")]
    result = CliRunner().invoke(stepscope_command, ["diff", *sides, "--no-cache", *options])
    assert result.exit_code == 0, result.output
    assert "! memory is not compared: " in result.stderr
    assert "2 ranks" in result.stderr
    assert not options or "memory" not in json.loads(result.stdout)


# -- advice


def of_module(share: float, others: int = 1) -> MemoryFacts:
    """Facts in which the activations of one module are a share of a peak of 1000 MiB."""
    facts = facts_of(PLAIN)
    first = facts.activation_modules[0]
    held = round(1000 * share) * MIB
    left = [
        replace(first, name=f"net.other{row}", bytes=(1000 * MIB - held) // others) for row in range(others)
    ]
    return replace(
        facts,
        peak_bytes=1000 * MIB,
        lines=(),
        kinds=(),
        activation_modules=(replace(first, bytes=held), *left),
    )


def test_a_module_is_ranked_by_what_checkpointing_reduces() -> None:
    facts = facts_of(PLAIN)
    assert [(one.name, one.bytes) for one in facts.activation_modules] == [
        ("net.first", 4000),
        ("net.second", 2000),
    ]


def test_weights_of_a_module_are_no_gain_of_checkpointing() -> None:
    facts = replace(of_module(0.7), modules=())
    (finding,) = find_problems(facts)
    assert (finding.rule, finding.gain_bytes) == ("activations", 700 * MIB)
    assert "checkpoint:module=net.first" in finding.advice
    heavy = replace(of_module(0.1, 9), modules=(replace(facts.activation_modules[0], bytes=900 * MIB),))
    assert find_problems(heavy) == []


def test_the_whole_model_is_not_advised_as_a_module_to_checkpoint() -> None:
    facts = of_module(0.7)
    whole = replace(facts.activation_modules[0], name="(Net)")
    facts = replace(facts, activation_modules=(whole, *facts.activation_modules[1:]))
    assert find_problems(facts) == []


@pytest.mark.parametrize("modules", [0, 6])
def test_many_equal_modules_are_advised_like_a_snapshot_without_modules(modules: int) -> None:
    facts = of_module(1 / 6, 5)
    share = replace(facts.activation_modules[0], name="activations", bytes=800 * MIB)
    facts = replace(
        facts,
        kinds=(share,),
        activation_modules=facts.activation_modules[:modules],
        activation_lines=(replace(share, name="model.py:3"),),
    )
    (finding,) = find_problems(facts)
    assert (finding.rule, finding.gain_bytes, finding.place) == ("activations", 800 * MIB, "model.py:3")
    assert "checkpoint:module" not in finding.advice


@pytest.mark.parametrize(
    ("kind", "computed", "advised"),
    [("weights", 0, False), ("gradients", 0, False), ("activations", 600 * MIB, True), ("unknown", 0, True)],
)
def test_what_training_keeps_is_no_tensor_to_compute_in_chunks(
    kind: str, computed: int, advised: bool
) -> None:
    """As the weights of an embedding."""
    line = MemoryShare("train.py:5", 600 * MIB, 1)
    facts = replace(
        of_module(0.1, 9),
        kinds=(MemoryShare(kind, 600 * MIB, 1),),
        lines=(line,),
        activation_lines=(replace(line, bytes=computed),) if computed else (),
        unassigned_lines=(line,) if kind == "unknown" else (),
    )
    assert [one.rule for one in find_problems(facts)] == ["one_large_tensor"] * advised


def test_nothing_waits_for_backward_where_none_was_recorded() -> None:
    allocations = f"cuda:0 | 16 99 | {40 * MIB}\ncpu | 17 98 | 8"
    gpu, cpu = memory_facts(with_allocations(INFERENCE, allocations))
    (finding,) = find_problems(gpu)
    assert (finding.rule, finding.advice) == ("activations", "Compute it in chunks, or use a smaller batch.")
    assert find_problems(cpu) == []  # of so little nothing is to gain
    (trained, _) = memory_facts(with_allocations(STEP, allocations))
    assert find_problems(trained)[0].advice.startswith("Checkpoint it")


def test_the_only_gpu_of_each_file_is_compared_whatever_its_number() -> None:
    sides = [with_allocations(STEP, f"cuda:{gpu} | 16 99 | {gpu + 7}\ncpu | 17 98 | 5") for gpu in (0, 2)]
    pairs = [
        (one.before_device, one.device, one.before_bytes, one.after_bytes) for one in compare_memory(*sides)
    ]
    assert pairs == [(0, 2, 7, 9), (-1, -1, 5, 5)]
    several = with_allocations(STEP, "cuda:1 | 16 99 | 7\ncuda:2 | 17 98 | 6")
    assert [(one.before_device, one.device) for one in compare_memory(several, sides[1])] == [(2, 2)]


FOUR_STEPS = "".join(
    f"\nmain | {200 * number} {200 * number + 200} | ProfilerStep#{number}"
    f"\nmain | {200 * number + 10} {200 * number + 90} | aten::mm"
    for number in range(4)
)


@pytest.mark.parametrize(("there_before", "grows"), [(8, False), (1, True), (0, True)])
def test_what_replaces_memory_from_before_the_recording_does_not_grow(there_before: int, grows: bool) -> None:
    made = "".join(f"\ncpu | {200 * step + 20 + k} - | 4096" for step in range(4) for k in range(2))
    released = "".join(f"\ncpu | - {60 + 90 * number} | 4096" for number in range(there_before))
    (facts,) = memory_facts(with_allocations(FOUR_STEPS, made + released))
    assert bool(facts.growth) is grows
