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
        "cpu_latency", "optimizer_loop", "pageable_copies", "zero_grad_memset",
    },
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz": {
        "exposed_communication", "layout_conversions", "kernel_fusion",
    },
    "steps_ns_v100/rank0.json.gz": {"fp32_matmul"},
    "diff_a100_v100/a100_rank3of8.json.gz": {"exposed_communication", "synchronising_calls"},
    "pair_h100_mi300x/timesformer_h100.json.gz": {
        "hotspot", "odd_shapes", "synchronising_calls",
    },
    "pair_h100_mi300x/timesformer_mi300.json.gz": {"odd_shapes"},
    "pair_h100_mi300x/bert_small_h100.json.gz": {"cpu_latency", "odd_shapes"},
    "pair_h100_mi300x/bert_small_mi300.json.gz": {"cpu_latency", "odd_shapes"},
    "diff_a100_v100/v100_rank1of2.json.gz": {"exposed_communication", "fp32_matmul"},
    "dlrm_8rank_v100": {
        "cpu_latency", "exposed_communication", "kernel_fusion", "optimizer_loop",
    },
    "eager_b200/rank0.json.gz": {"cpu_latency"},
    "nccl_args_a100/rank0.json.gz": {"cpu_latency"},
    "mtia_training/rank0.json.gz": {"cpu_latency", "optimizer_loop"},
    "resnet_2080ti_with_et/kineto.json.gz": {"input_bound"},
    "critical_path_a100/cuda_event_sync.json.gz": {"cpu_latency"},
    "critical_path_a100/cuda_event_sync_multi_stream.json.gz": {"cpu_latency"},
    "critical_path_a100/alexnet.json.gz": set(),
    "critical_path_a100/simple_add.json.gz": set(),
    "edge_cases/a100_rank0of16.json.gz": {"exposed_communication"},
    "edge_cases/cpu_only.json.gz": {"exposed_communication"},
    "edge_cases/gpu_only_mi210.json.gz": {"layout_conversions"},
    "edge_cases/mi250_rocm62.json.gz": {"cpu_latency"},
    "edge_cases/backward_thread.json": set(),
    "edge_cases/no_distributed_info.json.gz": set(),
    "edge_cases/torch_compile_triton.json.gz": set(),
    "edge_cases/triton.json.gz": set(),
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
