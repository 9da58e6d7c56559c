"""From events to a tree: calls with the same path are merged and nothing is lost."""

import numpy as np
import pytest
from oracles.context_tree import checked

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import ContextTree, build_contexts, measure
from stepscope.facts.contexts.node_values import measures
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat
from stepscope.trace.schema import MEMORY
from stepscope.trace.table import Table

STEPS = """
    main      |   0 100 | ProfilerStep#0
    main      |  10  30 | train.py(7): forward
    main      |  12  28 | aten::linear
    main      |  14  20 | aten::addmm            | seq=1
    main      |  15  18 | cudaLaunchKernel       | corr=1
    autograd  |  40  60 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
    autograd  |  41  59 | AddmmBackward0         | seq=1 fwd=1
    autograd  |  42  50 | aten::mm
    autograd  |  43  45 | cudaLaunchKernel       | corr=2
    autograd  |  70  80 | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    main      | 100 200 | ProfilerStep#1
    main      | 110 140 | train.py(7): forward
    main      | 112 138 | aten::linear
    main      | 114 124 | aten::addmm
    main      | 115 117 | cudaLaunchKernel       | corr=3
    stream 7  |  30  40 | sgemm                  | corr=1
    stream 7  |  55  75 | sgemm_back             | corr=2
    stream 7  | 130 144 | sgemm                  | corr=3
    stream 7  | 150 155 | leftover               | corr=99
"""


def tree_of(text: str, **options: int) -> ContextTree:
    return checked(build_contexts(annotate(drawn_trace(text)), **options))


def drawn(tree: ContextTree, metric: str = "cpu_ns") -> list[str]:
    """One line per node: indented by depth, with exclusive and inclusive values in us."""
    own, whole = tree.own(metric), tree.inclusive(metric)
    return [
        f"{'  ' * int(tree.depth[node])}{tree.label(node)} "
        f"{own.count[node]}x {own.sum[node] / 1000:g} of {whole.sum[node] / 1000:g}"
        for node in range(len(tree))
        if whole.count[node]
    ]


def test_calls_of_one_path_are_merged_over_steps_and_backward_is_below_its_forward() -> None:
    assert drawn(tree_of(STEPS)) == [
        "all 0x 0 of 230",
        "  main 0x 0 of 220",
        "    step 2x 150 of 220",
        "      forward 2x 8 of 70",
        "        aten::linear 2x 26 of 62",
        "          aten::addmm 2x 11 of 36",
        "            cudaLaunchKernel 2x 5 of 5",
        "            autograd::engine::evaluate_function: AddmmBackward0 1x 2 of 20",
        "              AddmmBackward0 1x 10 of 18",
        "                aten::mm 1x 6 of 8",
        "                  cudaLaunchKernel 1x 2 of 2",
        "  backward 0x 0 of 10",
        "    autograd::engine::evaluate_function: torch::autograd::AccumulateGrad 1x 10 of 10",
    ]


def test_device_work_is_below_the_operator_that_launched_it_or_a_separate_node() -> None:
    assert drawn(tree_of(STEPS), "device_ns") == [
        "all 0x 0 of 49",
        "  main 0x 0 of 44",
        "    step 0x 0 of 44",
        "      forward 0x 0 of 44",
        "        aten::linear 0x 0 of 44",
        "          aten::addmm 0x 0 of 44",
        "            sgemm 2x 24 of 24",
        "            autograd::engine::evaluate_function: AddmmBackward0 0x 0 of 20",
        "              AddmmBackward0 0x 0 of 20",
        "                aten::mm 0x 0 of 20",
        "                  sgemm_back 1x 20 of 20",
        "  work without a launch 0x 0 of 5",
        "    leftover 1x 5 of 5",
    ]


def test_a_frame_has_its_file_line_and_via() -> None:
    tree = tree_of(STEPS)
    rows = {row["name"]: row for row in tree.nodes.rows()}
    assert (rows["forward"]["file"], rows["forward"]["line"]) == ("train.py", 7)
    assert [rows[name]["via"] for name in ("forward", "sgemm", "AddmmBackward0")] == [
        "call",
        "launch",
        "call",
    ]
    assert tree.label(tree.search(via="backward")[0]).endswith("AddmmBackward0")
    assert rows["sgemm"]["kind"] == "kernel"
    assert rows["sgemm_back"]["stage"] == "backward"


def test_calls_have_statistics_of_their_length() -> None:
    tree = tree_of(STEPS)
    calls, (addmm,) = tree.own("call_ns"), tree.search("^aten::addmm$")
    assert calls.count[addmm] == 2
    assert (calls.min[addmm], calls.max[addmm], calls.mean[addmm]) == (6000, 10000, 8000)
    assert calls.std[addmm] == 2000


def test_inclusive_statistics_include_mean_and_spread() -> None:
    tree = tree_of(STEPS)
    device, (linear,) = tree.inclusive("device_ns"), tree.search("^aten::linear$")
    times = np.array([10000, 20000, 14000])
    assert (device.count[linear], device.sum[linear]) == (3, 44000)
    assert (device.min[linear], device.max[linear]) == (10000, 20000)
    assert device.mean[linear] == pytest.approx(times.mean())
    assert device.std[linear] == pytest.approx(times.std())


def test_launches_are_counted_at_the_call_and_their_delay_at_the_work() -> None:
    tree = tree_of(STEPS)
    assert tree.total("launches") == 3
    launching = tree.own("launches").count > 0
    assert {tree.label(node) for node in np.flatnonzero(launching)} == {"cudaLaunchKernel"}
    assert tree.total("launch_delay_ns") == (30 - 15 + 55 - 43 + 130 - 115) * 1000


def test_a_single_step() -> None:
    tree = tree_of(STEPS, step=1)
    assert tree.total("cpu_ns") == 100_000
    assert "AddmmBackward0" not in list(tree.nodes.text("name"))


def test_a_missing_step_is_refused_with_the_existing_ones() -> None:
    with pytest.raises(TraceError, match=r"has no step 5; it has 0, 1"):
        tree_of(STEPS, step=5)


@pytest.mark.parametrize(
    ("chosen", "allocated"),
    [({}, 12), ({"step": 0}, 0), ({"step": 1}, 0), ({"rank": 0}, 5), ({"rank": 1}, 7)],
)
def test_memory_outside_all_calls_is_of_its_rank_and_of_no_single_step(
    chosen: dict[str, int], allocated: int
) -> None:
    traces = []
    for rank, size in ((0, 5), (1, 7)):
        memory = Table(MEMORY, {"time_ns": [150_000], "event": [-1], "bytes": [size], "rank": [rank]})
        traces.append(annotate(drawn_trace(STEPS, ranks=(rank,), world_size=2)).with_table(memory))
    assert build_contexts(concat(traces), **chosen).total("allocated_bytes") == allocated


def test_events_map_to_nodes() -> None:
    trace = annotate(drawn_trace(STEPS))
    tree = build_contexts(trace)
    (addmm,) = tree.search("^aten::addmm$")
    assert tree.event_node is not None
    events = np.flatnonzero(tree.event_node == addmm)
    assert [trace.events.text("name")[event] for event in events] == ["aten::addmm"] * 2


def test_overlapping_calls_do_not_count_time_twice() -> None:
    tree = tree_of("""
        main |  0 100 | train.py(3): outer
        main | 10  50 | train.py(4): first
        main | 40  80 | train.py(5): second
        main | 42  48 | train.py(6): inside
        main | 70  75 | train.py(7): late
    """)
    assert drawn(tree) == [
        "all 0x 0 of 100",
        "  main 0x 0 of 100",
        "    outer 1x 30 of 100",
        "      first 1x 40 of 40",
        "      second 1x 25 of 30",
        "        inside 1x 0 of 0",
        "        late 1x 5 of 5",
    ]


def test_ranges_on_the_device_and_spans_of_the_recorder_are_left_out_with_a_note() -> None:
    tree = tree_of("""
        main     | 0 10 | aten::mm
        spans    | 0 99 | PyTorch Profiler (0) | cat=other
        stream 7 | 0 20 | ProfilerStep#0       | cat=annotation
    """)
    assert tree.total("cpu_ns") == 10_000
    assert [(note.code, note.count) for note in tree.notes] == [("device_marks", 1), ("recorder_spans", 1)]


def test_a_trace_of_another_tool_becomes_a_tree_of_its_ranges() -> None:
    tree = tree_of("""
        main | 0 10 | compile | cat=other
        main | 2  5 | parse   | cat=other
    """)
    assert drawn(tree) == [
        "all 0x 0 of 10",
        "  main 0x 0 of 10",
        "    compile 1x 7 of 10",
        "      parse 1x 3 of 3",
    ]


def test_an_empty_trace_has_a_root() -> None:
    tree = checked(build_contexts(drawn_trace("")))
    assert len(tree) == 1
    assert tree.total("cpu_ns") == 0


MATCHED = """
    main     |  0  90 | ProfilerStep#0
    main     |  5  20 | aten::conv2d
    main     |  6  10 | aten::convolution | seq=1
    main     |  7   8 | cudaLaunchKernel  | corr=1
    main     | 22  30 | aten::linear
    main     | 32  34 | aten::mse_loss
    main     | 40  60 | autograd::engine::evaluate_function: AddmmBackward0
    main     | 70  80 | Optimizer.step#SGD.step
    stream 7 | 10  20 | conv              | corr=1
"""
MODEL = {
    "name": "net",
    "class": "Net",
    "children": [
        {
            "name": "body",
            "class": "Sequential",
            "children": [{"name": "0", "class": "Conv2d", "children": []}],
        },
        {"name": "fc", "class": "Linear", "children": []},
    ],
}


def test_modules_without_ranges_are_between_the_step_and_their_operators() -> None:
    tree = checked(build_contexts(annotate(drawn_trace(MATCHED), MODEL)))
    (conv,) = tree.search("^aten::conv2d$")
    assert [tree.label(node) for node in tree.path(conv)][2:] == [
        "step",
        "net",
        "body",
        "body.0",
        "aten::conv2d",
    ]
    (kernel,) = tree.search(kind="kernel")
    assert tree.nodes.text("module")[kernel] == "body.0"


def test_module_ranges_are_named_by_path() -> None:
    tree = tree_of("""
        main | 0 90 | ProfilerStep#0
        main | 1 80 | stepscope.module: net
        main | 2 40 | stepscope.module: net.fc
        main | 3 30 | aten::linear
    """)
    assert [tree.label(node) for node in tree.search(kind="module")] == ["net", "net.fc"]


def test_compiled_kernels_are_below_the_modules_that_they_name() -> None:
    tree = tree_of("""
        main     |  0 50 | train#step_num=0
        main     |  1 40 | PjitFunction(step) | cat=runtime
        main     |  2  3 | cuLaunchKernel     | corr=1
        main     |  4  5 | cuLaunchKernel     | corr=2
        stream 7 | 10 14 | fusion             | corr=1 scope=jit(step)/jvp(MLP)/Dense_0/add
        stream 7 | 20 22 | fusion_1           | corr=2 scope=jit(step)/transpose(jvp(MLP))/mul
    """)
    assert drawn(tree, "device_ns") == [
        "all 0x 0 of 6",
        "  main 0x 0 of 6",
        "    step 0x 0 of 6",
        "      MLP 0x 0 of 6",
        "        fusion_1 1x 2 of 2",
        "        MLP.Dense_0 0x 0 of 4",
        "          fusion 1x 4 of 4",
    ]


def test_launches_are_described_at_the_kernel_and_above_it() -> None:
    sizes = "grid=[6,2,1] block=[128,1,1] registers_per_thread={} shared_memory=1024"
    first = f"corr=1 {sizes.format(40)} est._achieved_occupancy_%=25\n    stream"
    text = STEPS.replace("corr=1\n    stream", first)
    tree = tree_of(text.replace("corr=3\n    stream", f"corr=3 {sizes.format(80)}\n    stream"))
    node = [tree.label(node) for node in range(len(tree))].index("sgemm")
    stats = {name: tree.own(name) for name in ("blocks", "threads", "registers", "shared_bytes", "occupancy")}
    assert {name: (int(s.count[node]), float(s.mean[node])) for name, s in stats.items()} == {
        "blocks": (2, 12),
        "threads": (2, 1536),
        "registers": (2, 60),
        "shared_bytes": (2, 1024),
        "occupancy": (1, 0.25),
    }
    assert tree.inclusive("registers").max[0] == 80
    assert not set(stats) & set(measures(tree))
    with pytest.raises(TraceError, match="registers does not add up over launches"):
        measure(tree, "registers")
