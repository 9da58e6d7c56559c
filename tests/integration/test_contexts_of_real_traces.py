"""Trees of every real trace: sums are conserved, counted again here by other means."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from oracles.context_tree import checked

from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.contexts import aligned, bottom_up, build_contexts, hide, measure
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import DEVICE_WORK
from stepscope.trace.trace import Trace

TRACES = [
    "critical_path_a100/alexnet.json.gz",
    "critical_path_a100/cuda_event_sync.json.gz",
    "critical_path_a100/cuda_event_sync_multi_stream.json.gz",
    "critical_path_a100/simple_add.json.gz",
    "cuda_graph_vllm/graph_capture.json.gz",
    "cuda_graph_vllm/graph_execution.json.gz",
    "diff_a100_v100/a100_rank3of8.json.gz",
    "diff_a100_v100/v100_rank1of2.json.gz",
    "dlrm_8rank_v100",
    "eager_b200/rank0.json.gz",
    "edge_cases/a100_rank0of16.json.gz",
    "edge_cases/backward_thread.json",
    "edge_cases/cpu_only.json.gz",
    "edge_cases/gpu_only_mi210.json.gz",
    "edge_cases/mi250_rocm62.json.gz",
    "edge_cases/no_distributed_info.json.gz",
    "edge_cases/no_gpu.json.gz",
    "edge_cases/torch_compile_triton.json.gz",
    "edge_cases/triton.json.gz",
    "kineto_resnet50_v100/num_workers_0.json.gz",
    "kineto_resnet50_v100/num_workers_4.json.gz",
    "mtia_training/rank0.json.gz",
    "nccl_args_a100/rank0.json.gz",
    "pair_h100_mi300x/bert_small_h100.json.gz",
    "pair_h100_mi300x/bert_small_mi300.json.gz",
    "pair_h100_mi300x/timesformer_h100.json.gz",
    "pair_h100_mi300x/timesformer_mi300.json.gz",
    "resnet_2080ti_with_et/kineto.json.gz",
    "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz",
    "steps_ns_v100/rank0.json.gz",
]


@pytest.mark.parametrize("name", TRACES)
def test_nothing_is_lost(opened: Callable[[str], Trace], name: str) -> None:
    trace = opened(name)
    tree = checked(build_contexts(trace))
    events = trace.events
    ends = events["start_ns"] + events["duration_ns"]

    # A thread's CPU time is the time in which anything of it ran, counted without any nesting.
    told = events.text("category").where(lambda category: category != "other")
    wall = 0
    for track in np.flatnonzero(trace["tracks"]["device"] < 0):
        on_track = events["track"] == track
        if told[on_track].any():
            wall += Intervals(events["start_ns"][on_track], ends[on_track]).total()
    assert tree.total("cpu_ns") == wall

    # Every piece of device work is in it: what a launch explains, and the rest by itself.
    work = device_work(trace)
    assert tree.total("device_ns") == events["duration_ns"][work].sum()
    launched = np.zeros(len(events), np.bool_)
    launched[trace["launches"]["device_event"]] = True
    loose = tree.search("without a launch", kind="unlinked")
    unlinked = tree.inclusive("device_ns").sum[loose].sum() if work.any() else 0
    assert unlinked == events["duration_ns"][work & ~launched].sum()

    # Every allocation and every release.
    sizes = trace["memory"]["bytes"]
    assert tree.total("allocated_bytes") == sizes[sizes > 0].sum()
    assert tree.total("freed_bytes") == -sizes[sizes < 0].sum()

    # Every event is in a node, or in a note.
    assert tree.event_node is not None
    left_out = sum(note.count for note in tree.notes)
    assert (tree.event_node < 0).sum() == left_out
    kinds = tree.nodes.text("kind").take(tree.event_node[tree.event_node >= 0])
    assert kinds.mask(*DEVICE_WORK).sum() >= work.sum()


@pytest.mark.parametrize(
    "name",
    [
        "diff_a100_v100/a100_rank3of8.json.gz",
        "pair_h100_mi300x/timesformer_h100.json.gz",
        "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz",
    ],
)
def test_sums_survive_every_operation(opened: Callable[[str], Trace], name: str) -> None:
    tree = build_contexts(opened(name))
    autograd = tree.nodes.text("name").where(lambda name: name.startswith("autograd::engine"))
    for made in (bottom_up(tree), hide(tree, autograd)):
        checked(made)
        for metric in ("cpu_ns", "device_ns"):
            assert made.total(metric) == tree.total(metric)
    before, after = (measure(each, "device").inclusive for each in aligned(tree, tree))
    assert (before == after).all()


def test_backward_hangs_below_its_forward_call(opened: Callable[[str], Trace]) -> None:
    trace = opened("kineto_resnet50_v100/num_workers_0.json.gz")
    tree = build_contexts(trace)
    linked = np.flatnonzero(trace.events["forward_event"] >= 0)
    forward = trace.events["forward_event"][linked]
    assert tree.event_node is not None
    above, below = tree.event_node[forward], tree.event_node[linked]
    assert len(linked) == 1068
    assert (below > above).all()
    assert (below < tree.end[above]).all()


def test_ranks_of_a_folder_are_one_tree_or_one_each(opened: Callable[[str], Trace]) -> None:
    trace = opened("dlrm_8rank_v100")
    whole, alone = build_contexts(trace), [build_contexts(trace, rank=rank) for rank in range(8)]
    assert sum(one.total("device_ns") for one in alone) == whole.total("device_ns")
    assert [row["name"] for row in whole.nodes.rows() if row["kind"] == "thread"] == ["backward", "main"]


def test_steps_add_up_to_what_belongs_to_steps(opened: Callable[[str], Trace]) -> None:
    trace = opened("steps_ns_v100/rank0.json.gz")
    work = device_work(trace) & (trace.events["step"] >= 0)
    alone = [build_contexts(trace, step=int(step)) for step in trace["steps"]["step"]]
    total = sum(one.total("device_ns") for one in alone)
    assert total == trace.events["duration_ns"][work].sum()
