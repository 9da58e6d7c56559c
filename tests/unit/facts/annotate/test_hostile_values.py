"""Arguments and names of any kind and size: each fact is derived, or left out."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.faces.terminal.commands import stepscope
from stepscope.facts.load import open_file
from stepscope.facts.summary.report_facts import summarize
from stepscope.models.ranks.sketch import sketch_of

KEYS = """External id|Ev Idx|Input Dims|Input type|Input Strides|Concrete Inputs|Sequence number
Fwd thread id|correlation|device|stream|context|queued|grid|block|est. achieved occupancy %|bytes
Collective name|dtype|In msg nelems|Out msg nelems|Group size|Process Group Name|Process Group Ranks
Src Rank|Dst Rank|Python id|Call stack|Module Hierarchy|Addr|Bytes|Total Allocated|Device Type
Device Id|graph id|graph node id|hlo_op|hlo_module|run_id|program_id|cbid|kernel_file|flops"""
NAMES = """ProfilerStep#N|stepscope.block: x (f:N)|jit_f(N)|f.py(N): g|nn.Module: A_N|rank N|send N->N
autograd::engine::evaluate_function: MmBackward0N|Memcpy HtoD (N)|## iteration N ##|aten::mmN
execute_context_1(N)_generation_N(1)|step[DECODE bs=N]"""
DIGITS = "9" * 5000  # more than Python converts
VALUES: list[Any] = [
    *(2**62, 2**63 - 1, 2**70, -1, -(2**63), 10**30, 1e308, -0.5, True, None, "", "x", "\ud800"),
    *([], [[]], [[[]]], {}, {"a": {}}, DIGITS, f"[{DIGITS}]", "[[1,2],[3"),
]


def step_events() -> list[dict[str, Any]]:
    """Three steps with an operator, its kernel, its backward, a collective and an optimizer."""
    rows: list[tuple[str, str, int, int, int, dict[str, Any]]] = [
        ("ProfilerStep#{}", "user_annotation", 1, 0, 100, {}),
        ("aten::mm", "cpu_op", 1, 1, 9, {"Sequence number": 1, "External id": 1}),
        ("cudaLaunchKernel", "cuda_runtime", 1, 2, 4, {"correlation": 1}),
        ("sgemm", "kernel", 7, 6, 20, {"correlation": 1, "device": 0, "stream": 7}),
        ("MmBackward0", "cpu_op", 2, 40, 9, {"Sequence number": 1, "Fwd thread id": 1}),
        ("record_param_comms", "cpu_op", 1, 55, 9, {"Collective name": "send", "Dst Rank": 1}),
        ("cudaLaunchKernel", "cuda_runtime", 1, 56, 4, {"correlation": 2}),
        ("ncclDevKernel_SendRecv", "kernel", 20, 61, 9, {"correlation": 2, "device": 0, "dtype": "Float"}),
        ("Optimizer.step#SGD.step", "user_annotation", 1, 80, 15, {}),
    ]
    return [
        {"ph": "X", "name": name.format(step), "cat": category, "pid": int(thread < 7), "tid": thread}
        | {"ts": 100 * step + start, "dur": length, "args": dict(arguments)}
        for step in range(3)
        for name, category, thread, start, length, arguments in rows
    ]


def derive_all(events: list[dict[str, Any]], path: Path) -> None:
    path.write_text(json.dumps({"distributedInfo": {"rank": 0, "world_size": 2}, "traceEvents": events}))
    trace = open_file(path, None, cache=False)
    if len(trace["steps"]):
        summarize(trace, 0)
        apply_rules(RuleContext(trace, 0), RULES)
        sketch_of(trace)


def predict_all(events: list[dict[str, Any]], path: Path, **device: Any) -> None:
    device = {"id": 0, "name": "NVIDIA H200", "computeMajor": 9} | device
    path.write_text(json.dumps({"deviceProperties": [device], "traceEvents": events}))
    done = CliRunner().invoke(stepscope, ["whatif", "--no-cache", "--all", str(path)])
    assert done.exit_code in (0, 2), done.output
    assert "unexpected error" not in done.output, done.output


@pytest.mark.parametrize("key", ["id", "name", "numSms", "computeMajor", "totalGlobalMem"])
def test_devices_of_any_property(key: str, tmp_path: Path) -> None:
    for value in ("x", -1, 2**63, {}, True):
        predict_all(step_events(), tmp_path / "trace.json", **{key: value})


SIZES = [[], [0], [8], [8, 16], [16, 4], [2, 3, 9, 9], [4, 3, 3, 3], [2**40, 2**40], [1] * 70, *VALUES]
TEXTS = ["", "[1, 1]", "[0]", "[0, 0]", "[]", "[-9]", "[{}]", "True", "1e999", "[[1]]", f"[{10**30}]", {}]
CALLED = [
    "mm",
    "addmm",
    "linear",
    "bmm",
    "conv2d",
    "conv_transpose2d",
    "convolution_backward",
    "lstm",
    "gelu",
]


@pytest.mark.parametrize("first", [0, pytest.param(2, marks=pytest.mark.full)])
def test_sizes_and_values_of_any_kind(first: int, tmp_path: Path) -> None:
    for seed in range(first, first * 20 or 2):
        chance = random.Random(seed)
        step, events = step_events(), []
        for number in range(40):  # the same calls in each step
            own = {
                "Input Dims": chance.choices(SIZES, k=9),
                "Input Strides": chance.choices([[16, 1], [1], [[1]], *SIZES], k=9),
                "Input type": ["float"] * 9,
                "Concrete Inputs": chance.choices(TEXTS, k=9),
            }
            name = f"aten::{chance.choice(CALLED)}"
            for event in step[: 9 if number else 0] + step[1:5]:
                shift = {"ts": event["ts"] + 1000 * number}
                events.append(event | shift | ({"name": name} if "aten" in event["name"] else {}))
                events[-1]["args"] = event["args"] | own
        predict_all(events + step, tmp_path / "trace.json")


def all_of(text: str) -> list[str]:
    return text.replace("\n", "|").split("|")


@pytest.mark.parametrize("key", ["In msg nelems", "Group size", "Process Group Ranks", "Dst Rank", "device"])
@pytest.mark.parametrize("value", [2**62, 2**70, DIGITS, f"[{DIGITS}]"], ids=lambda value: str(value)[:9])
def test_an_argument_of_any_value(key: str, value: Any, tmp_path: Path) -> None:
    events = step_events()
    for event in events:
        event["args"][key] = value
    derive_all(events, tmp_path / "trace.json")


@pytest.mark.main
@pytest.mark.parametrize("first", [0, pytest.param(20, marks=pytest.mark.full)])
def test_arguments_and_names_at_random(first: int, tmp_path: Path) -> None:
    for seed in range(first, first * 20 or 20):
        chance = random.Random(seed)
        events = step_events()
        for key in chance.sample(all_of(KEYS), chance.choice([1, 3, 30])):
            value = chance.choice(VALUES)
            for event in chance.sample(events, 12):
                event["args"][key] = value
        for event in chance.sample(events, 3):
            event["name"] = chance.choice(all_of(NAMES)).replace("N", chance.choice([DIGITS, "2147483647"]))
        derive_all(events, tmp_path / "trace.json")
