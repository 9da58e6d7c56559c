"""Findings on real traces, each judged by hand; the verdicts are in docs/analyzer.md."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepscope
from stepscope.analyze import RULES, Subject, apply_rules

FOUND = {
    "kineto_resnet50_v100/num_workers_0.json.gz": {
        "input_bound", "optimizer_loop", "zero_grad_memset", "fp32_matmul",
    },
    "kineto_resnet50_v100/num_workers_4.json.gz": {
        "cpu_latency", "optimizer_loop", "zero_grad_memset",
    },
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz": {
        "exposed_communication", "layout_conversions", "kernel_fusion",
    },
    "steps_ns_v100/rank0.json.gz": {"fp32_matmul"},
    "diff_a100_v100/a100_rank3of8.json.gz": {"exposed_communication", "synchronising_calls"},
    "pair_h100_mi300x/timesformer_h100.json.gz": {
        "hotspot", "odd_shapes", "synchronising_calls",
    },
    "cuda_graph_vllm/graph_capture.json.gz": set(),
    "cuda_graph_vllm/graph_execution.json.gz": set(),
    "edge_cases/no_gpu.json.gz": set(),
}  # fmt: skip


@pytest.mark.parametrize("file", sorted(FOUND))
def test_findings_are_those_judged_true(file: str, traces: Path) -> None:
    subject = Subject(stepscope.open(traces / file))
    assert {one.rule for one in apply_rules(subject, RULES)} == FOUND[file]


def test_the_data_loader_is_named_where_it_holds_the_step_up(traces: Path) -> None:
    """33 % of the step is idle for want of data (docs/annotation.md); four workers end that."""
    subject = Subject(stepscope.open(traces / "kineto_resnet50_v100/num_workers_0.json.gz"))
    worst = apply_rules(subject, RULES)[0]
    assert (worst.rule, worst.severity) == ("input_bound", "critical")
    assert worst.gain.changes == ("dataloader",)
    assert worst.gain.ms == pytest.approx(subject.idle_ms("data"), rel=0.05)
    assert {place.name for place in worst.evidence} == {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    }


def test_evidence_on_a_device_has_its_module_and_line(traces: Path) -> None:
    """The softmax of TimeSformer's attention, 12 times: unfused attention."""
    subject = Subject(stepscope.open(traces / "pair_h100_mi300x/timesformer_h100.json.gz"))
    hot = next(one for one in apply_rules(subject, RULES) if one.rule == "hotspot")
    assert "scaled_dot_product_attention" in hot.advice
    place = hot.evidence[0]
    assert place.module.endswith("TimesformerSelfAttention_3")
    assert place.file == "transformers/models/timesformer/modeling_timesformer.py"
    assert place.function == "forward"
