"""Findings on real traces, each checked by hand (docs/reference/analyzer_rules.md)."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import StringIO

import pytest
from rich.console import Console

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.analyze.analysis import Analysis, Heading
from stepscope.analyze.findings_text import print_findings
from stepscope.trace.trace import Trace

FOUND = {
    "kineto_resnet50_v100/num_workers_0.json.gz": {
        "input_bound",
        "optimizer_loop",
        "zero_grad_memset",
        "fp32_matmul",
        "pageable_copies",  # 1.9 ms, in which the loop that limits the step does nothing else
    },
    "kineto_resnet50_v100/num_workers_4.json.gz": {
        "cpu_latency",
        "optimizer_loop",
        "pageable_copies",  # 3.1 ms likewise; the 36 ms that the device waits in the first step do not recur
        "zero_grad_memset",
    },
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz": {
        "exposed_communication",
        "layout_conversions",
        "recomputation",
    },
    "steps_ns_v100/rank0.json.gz": {"fp32_matmul"},
    "diff_a100_v100/a100_rank3of8.json.gz": {
        "cpu_latency",
        "exposed_communication",
        "kernel_fusion",
        "synchronizing_calls",
    },
    "pair_h100_mi300x/timesformer_h100.json.gz": {
        "hotspot",
        "odd_shapes",
        "python_stall",
        "synchronizing_calls",
        "unfused_attention",
    },
    "pair_h100_mi300x/timesformer_mi300.json.gz": {"python_stall", "unfused_attention"},
    "pair_h100_mi300x/bert_small_h100.json.gz": {"cpu_latency"},
    "pair_h100_mi300x/bert_small_mi300.json.gz": {"cpu_latency"},
    "diff_a100_v100/v100_rank1of2.json.gz": {"exposed_communication", "fp32_matmul", "kernel_fusion"},
    "dlrm_8rank_v100": {"cpu_latency", "exposed_communication", "kernel_fusion", "optimizer_loop"},
    "eager_b200/rank0.json.gz": {"cpu_latency"},
    "nccl_args_a100/rank0.json.gz": {"cpu_latency", "broadcast_buffers"},
    "mtia_training/rank0.json.gz": {"cpu_latency", "optimizer_loop"},
    "resnet_2080ti_with_et/kineto.json.gz": {"fp32_matmul", "input_bound", "pageable_copies"},
    "critical_path_a100/cuda_event_sync.json.gz": {"cpu_latency", "idle_device"},  # in aten::empty
    "critical_path_a100/cuda_event_sync_multi_stream.json.gz": {"idle_device"},
    "critical_path_a100/alexnet.json.gz": {"first_use", "idle_device"},
    "critical_path_a100/simple_add.json.gz": {"first_use", "idle_device"},
    "edge_cases/a100_rank0of16.json.gz": set(),  # the recorder lost most nodes of its graphs
    "edge_cases/cpu_only.json.gz": {"exposed_communication"},
    "edge_cases/gpu_only_mi210.json.gz": {"idle_device", "layout_conversions"},  # 7 % and 8 % of the step
    "edge_cases/mi250_rocm62.json.gz": {"cpu_latency", "first_use", "pageable_copies", "small_batch"},
    "edge_cases/backward_thread.json": {"python_stall"},
    "edge_cases/no_distributed_info.json.gz": set(),
    "edge_cases/torch_compile_triton.json.gz": {"low_utilization"},
    "edge_cases/triton.json.gz": {"idle_device"},
    # 55.8 of 59.0 ms are the capture of a graph, whose launches run nothing.
    "cuda_graph_vllm/graph_capture.json.gz": {"cpu_latency", "first_use", "synchronizing_calls"},
    # Its device still does the work of the iteration before, which is not recorded.
    "cuda_graph_vllm/graph_execution.json.gz": set(),
    "edge_cases/no_gpu.json.gz": set(),
    "edge_cases/malformed/multi-thread-with-samples.json": set(),
}
# Names that a profiler, a framework or stepscope gives to what the user calls otherwise.
INTERNAL = re.compile(
    r"ProfilerStep|stepscope\.|module model|evaluate_function|AccumulateGrad|#step_num"
    r"|Register(Post|Pre)Backward|\[clone|Optimizer\.\w+#|nn\.Module: |DataLoaderIter|## "
)


@pytest.mark.parametrize("file", sorted(FOUND))
def test_findings_are_those_judged_true(file: str, opened: Callable[[str], Trace]) -> None:
    context = RuleContext(opened(file))
    findings = apply_rules(context, RULES)
    assert {one.rule for one in findings} == FOUND[file]
    out = StringIO()
    print_findings(Console(file=out, width=1000), Analysis(Heading("", 0), tuple(findings)), every=True)
    assert not INTERNAL.findall(out.getvalue())


def test_the_data_loader_is_named_where_it_holds_the_step_up(opened: Callable[[str], Trace]) -> None:
    """33 % of the step is idle for want of data; four workers end that."""
    context = RuleContext(opened("kineto_resnet50_v100/num_workers_0.json.gz"))
    worst = apply_rules(context, RULES)[0]
    assert (worst.rule, worst.severity) == ("input_bound", "critical")
    assert worst.gain.changes == ("dataloader",)
    assert worst.gain.ms == pytest.approx(context.measures.idle_ms("data"), rel=0.05)
    assert {place.name for place in worst.evidence} == {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    }


def test_evidence_on_a_device_has_its_module_and_line(opened: Callable[[str], Trace]) -> None:
    """The softmax of TimeSformer's attention, 12 times: unfused attention."""
    context = RuleContext(opened("pair_h100_mi300x/timesformer_h100.json.gz"))
    hot = next(one for one in apply_rules(context, RULES) if one.rule == "hotspot")
    assert "scaled_dot_product_attention" in hot.advice
    place = hot.evidence[0]
    assert place.module.endswith("TimesformerSelfAttention_3")
    assert place.file == "transformers/models/timesformer/modeling_timesformer.py"
    assert place.function == "forward"


def test_a_cause_that_the_file_rules_out_is_not_stated(opened: Callable[[str], Trace]) -> None:
    """[8, 16, 4096, 128] in 16 bits suits every kernel of attention; 1.1 TFLOP in 3.7 ms is slow."""
    context = RuleContext(opened("edge_cases/torch_compile_triton.json.gz"))
    (slow,) = apply_rules(context, RULES)
    assert "reaches 23% of the roofline" in slow.what
    assert "its sizes are multiples of 64" in slow.what


def test_evidence_is_no_longer_than_the_step(opened: Callable[[str], Trace]) -> None:
    """Calls within calls of the same function: 62.5 ms in a step of 59.0."""
    for file in ("cuda_graph_vllm/graph_capture.json.gz", "critical_path_a100/simple_add.json.gz"):
        context = RuleContext(opened(file))
        longest = max(place.ms for one in apply_rules(context, RULES) for place in one.evidence)
        assert longest <= context.measures.step_ms


def test_a_wait_for_the_device_that_covers_the_idle_time_is_told(opened: Callable[[str], Trace]) -> None:
    """After the last kernel of a step, block_until_ready takes 19.4 of 31.3 idle ms."""
    (idle,) = apply_rules(RuleContext(opened("jax_xplane/conv_mi300x.xplane.pb")), RULES)
    assert "The CPU awaits the device for most of it" in idle.what
