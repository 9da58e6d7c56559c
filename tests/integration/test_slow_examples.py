"""The scripts in `examples/slow`: their rule finds the defect, and nothing once it is gone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from captured_examples import FOLDER, ON_TWO_RANKS, capture

import stepscope
from stepscope.analyze import RULES, Finding, RuleContext, apply_rules

# What of a finding shows on a CPU, by rule: the name of an event in its evidence.
SHOWN = {
    "hotspot": "aten::sort",
    "kernel_fusion": "aten::tanh",
    "forward_backward": "autograd::engine::evaluate_function: EmbeddingBackward0",
    "cpu_latency": "ProfilerStep#",
    "input_bound": "_SingleProcessDataLoaderIter",
    "too_many_workers": "_MultiProcessingDataLoaderIter",
    "synchronizing_calls": "aten::item",
    "layout_conversions": "aten::copy_",
    "index_backward": "IndexBackward0",
    "optimizer_loop": "aten::addcdiv_",
    "small_batch": "aten::addmm",
    "exchange_per_pass": "all_reduce",
    "exposed_communication": "all_reduce",
    "recompilation": "dynamo_timed",
    "zero_grad_memset": "zero_",
    "allocator_churn": "aten::",
    "fp64_matmul": "aten::mm",
    "anomaly_detection": "aten::isnan",
    "forward_without_backward": "stepscope.module",
    "unused_gradients": "AddmmBackward0",
    "work_between_stages": "aten::histc",
    "work_without_gradient": "aten::exp",
    "recurrent_loop": "aten::lstm_cell",
    "repeated_backward": "AddmmBackward0",
    "missing_kv_cache": "aten::linear",
    "padding": "padding",
}
ON_A_GPU = {"pageable_copies", "fp32_matmul", "odd_shapes"}
ON_SOME_CPUS = {"slow_fallback"}  # those without instructions for BF16; in tests/corpus too
IN_CORPUS = {  # tests/corpus
    "checkpoint_in_loop",
    "ddp_unused_parameters",
    "expert_loop",
    "first_use",
    "frequent_evaluation",
    "fsdp_prefetch",
    "idle_device",
    "low_utilization",
    "python_stall",
    "small_buckets",
    "unfused_attention",
}
DRAWN = {  # tests/unit/analyze: what they need no short script has, or no CPU
    "broadcast_buffers",
    "element_loop",
    "many_embeddings",
    "one_hot_product",
    "pipeline_bubble",
    "recomputation",
    "repeated_module",
    "restarted_workers",
    "rollouts",
    "slow_convolution",
    "slow_function",
}
OF_JAX = {"copy_fusions", "host_callbacks", "missing_donation", "small_programs"}  # tests/golden
BY_SAMPLES = {"stall_reasons"}  # ends without a GPU


def found(folder: Path, rule: str, fixed: bool = False) -> list[Finding]:
    """What the rule finds in the capture of its script.

    With the defect however small a part of the step it is: where other programs run, all that the
    rule does not mean takes longer.
    """
    suffix = "" if rule in ON_TWO_RANKS else ".stepscope"
    context = RuleContext(stepscope.open(folder / f"{rule}{'-fixed' if fixed else ''}{suffix}"))
    if fixed:
        return [one for one in apply_rules(context, RULES) if one.rule == rule]
    (meant,) = [one for one in RULES if one.name == rule]
    return list(meant.function(context))


def shown(folder: Path, rule: str, fixed: bool = False) -> list[Finding]:
    """The same with the evidence expected of it; times of others may be noise."""
    findings = found(folder, rule, fixed)
    return [one for one in findings if any(SHOWN[rule] in place.name for place in one.evidence)]


def test_each_rule_has_a_script_or_a_case_of_the_corpus() -> None:
    scripts = {path.stem for path in FOLDER.glob("*.py")} - {"common"}
    assert scripts | IN_CORPUS | DRAWN | OF_JAX == {rule.name for rule in RULES}
    assert scripts == {*SHOWN, "straggling_rank"} | ON_A_GPU | BY_SAMPLES | ON_SOME_CPUS


@pytest.mark.parametrize("fixed", [False, True])
def test_the_script_that_needs_a_device_says_so_in_one_line(fixed: bool) -> None:
    script = FOLDER / "stall_reasons.py"
    command = [sys.executable, str(script), *(["--fixed"] if fixed else [])]
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=hidden)
    assert done.returncode == 2
    assert done.stderr == (
        "stall_reasons.py: expected a CUDA device, found none; its defect shows on one only\n"
    )


@pytest.mark.parametrize("rule", sorted(SHOWN))
def test_the_rule_finds_the_defect_and_nothing_without_it(rule: str, tmp_path: Path) -> None:
    capture(rule, tmp_path)
    findings = shown(tmp_path, rule)
    assert len(findings) == 1
    assert findings[0].evidence
    assert findings[0].gain.ms > 0
    assert not shown(tmp_path, rule, fixed=True)


def test_the_rank_that_the_other_waits_for_is_named(tmp_path: Path) -> None:
    """Without the defect either may come last, as the machine has it; drawn steps tell more."""
    capture("straggling_rank", tmp_path)
    (finding,) = found(tmp_path, "straggling_rank")
    assert re.match(r"Rank 1: (forward|backward) \S+ longer in every step", finding.what)
