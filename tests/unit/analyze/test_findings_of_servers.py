"""Findings on inference servers: prefill and decode by name, and no advice on training."""

from __future__ import annotations

import io
import re

import pytest
from drawn_findings import V100, findings, found
from rich.console import Console
from test_device_rules import DRAWN

from stepscope.analyze import RULES, RuleContext
from stepscope.analyze.analysis import analysis_of
from stepscope.analyze.findings_text import print_findings
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import print_report
from stepscope.testing import drawn_trace

OF_TRAINING = re.compile(
    r"(?i)train|optimi[sz]er|gradient|backward|learning rate|data.?loader|bucket|epoch|auxiliary"
)
# How each server names an iteration; a rule finds the same defect in all of them.
PREFILL = {
    "vLLM": "execute_context_1(888_788544)_generation_0(0) | cat=annotation",
    "SGLang": "step[EXTEND bs=1 toks=888] | cat=annotation",
    "Text Generation Inference": "text_generation_server/server.py(120): Prefill",
    "TensorRT-LLM": "[Executor] _forward_step 3: 1 ctx reqs, 888 ctx tokens, 0 gen reqs | cat=annotation",
}
DECODE = {
    "vLLM": "execute_context_0(0)_generation_4(4) | cat=annotation",
    "SGLang": "step[DECODE bs=4] | cat=annotation",
    "Text Generation Inference": "text_generation_server/server.py(180): Decode",
    "TensorRT-LLM": "[Executor] _forward_step 4: 0 ctx reqs, 4 gen reqs | cat=annotation",
}
SERVED = (
    "cpu_latency",
    "exposed_communication",
    "hotspot",
    "pageable_copies",
    "synchronizing_calls",
    "kernel_fusion",
    "fp32_matmul",
    "allocator_churn",
    "small_batch",
    "layout_conversions",
)
_STEP = re.compile(r"ProfilerStep#\d+")
SLEEPING = """
    main     |    0 6000 | ProfilerStep#0
    main     |   20 5020 | <built-in function sleep> | cat=python
    main     | 5031 5034 | cudaLaunchKernel | corr=1
    stream 7 | 5040 5940 | ampere_fp16_s16816gemm | corr=1
"""
WAITING = """
    main     |    0 6000 | ProfilerStep#0
    main     |   20 5020 | scheduler.py(9): schedule
    main     | 5031 5034 | cudaLaunchKernel | corr=1
    stream 7 | 5040 5940 | ampere_fp16_s16816gemm | corr=1
"""


def served(text: str, server: str) -> str:
    """A drawn defect in iterations of a server, without the work of training."""
    lines = _STEP.sub(PREFILL[server], text).splitlines()
    return "\n".join(line for line in lines if not re.search(r"Backward|Optimizer", line))


def iterations(server: str) -> str:
    """An iteration of each kind, with one of them waiting for its launches."""
    lines = []
    for number, (name, at) in enumerate([(PREFILL, 0), (DECODE, 1000), (DECODE, 2000)]):
        lines += [f"main | {at} {at + 1000} | {name[server]}", f"main | {at + 10} {at + 900} | aten::linear"]
        for place in range(8):
            call, correlation = at + 20 + 100 * place, 10 * number + place
            lines += [
                f"main | {call} {call + 5} | cudaLaunchKernel | corr={correlation}",
                f"stream 7 | {call + 9} {call + 19} | gemm | corr={correlation}",
            ]
    return "\n".join(lines)


@pytest.mark.parametrize("server", PREFILL)
@pytest.mark.parametrize("rule", SERVED)
def test_no_advice_on_training(rule: str, server: str) -> None:
    text = served(DRAWN[rule][0], server)
    assert found(rule, text, devices=V100) is not None
    for one in findings(text, devices=V100):
        assert not OF_TRAINING.search(f"{one.what} {one.advice}"), one


@pytest.mark.parametrize("text", [SLEEPING, WAITING], ids=["sleeping", "waiting"])
def test_a_stall_of_a_server_is_in_its_loop(text: str) -> None:
    stall = found("python_stall", served(text, "vLLM"), devices=V100)
    assert stall is not None
    assert not OF_TRAINING.search(f"{stall.what} {stall.advice}")
    update = "main | 5950 5990 | Optimizer.step#SGD.step"
    trained = found("python_stall", f"{text}\n{update}", devices=V100)
    assert trained is not None
    assert "training loop" in trained.advice


@pytest.mark.parametrize(
    ("rule", "words"), [("cpu_latency", "a fused optimizer"), ("exposed_communication", "backward")]
)
def test_what_trains_is_advised_on_training(rule: str, words: str) -> None:
    lines = [line for line in DRAWN[rule][0].splitlines() if "Backward" not in line]
    defect = found(rule, "\n".join(lines), devices=V100)
    assert defect is not None
    assert words not in defect.advice
    trained = found(rule, "\n".join([*lines, "main | 992 998 | MmBackward0"]), devices=V100)
    assert trained is not None
    assert words in trained.advice


@pytest.mark.parametrize("server", PREFILL)
def test_the_report_and_findings_name_prefill_and_decode(server: str) -> None:
    trace = annotate(drawn_trace(iterations(server), devices=V100))
    report, out = io.StringIO(), io.StringIO()
    print_report(Console(file=report, width=120), [summarize(trace)])
    assert re.search(r"(?m)^prefill +0\.33 ", report.getvalue())  # of 3 steps: a mean per step
    assert re.search(r"(?m)^decode +0\.67 ", report.getvalue())
    assert "forward" not in report.getvalue().partition("Device")[0]
    print_findings(Console(file=out, width=200), analysis_of(RuleContext(trace), RULES))
    assert "mostly in decode" in out.getvalue()
    assert not OF_TRAINING.search(out.getvalue())


@pytest.mark.parametrize("trains", [False, True])
def test_small_all_reduces_of_a_model_are_not_of_gradients(trains: bool) -> None:
    """Tensor parallelism sums activations in each layer, in training too."""
    lines = ["main | 0 4000 | ProfilerStep#0", "main | 5 3000 | nn.Module: Net_0"]
    for place in range(20):
        at = 10 + 100 * place
        lines += [
            f"main | {at} {at + 5} | cudaLaunchKernel | corr={place}",
            f"stream 7 | {at + 9} {at + 90} | ncclDevKernel_AllReduce | corr={place} "
            "In_msg_nelems=1024 dtype=Float",
        ]
    lines += ["main | 3100 3200 | MmBackward0"] * trains
    assert found("small_buckets", "\n".join(lines), devices=V100) is None
