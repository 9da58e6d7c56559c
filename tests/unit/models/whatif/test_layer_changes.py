"""Checkpointing, vDNN, Gist and MetaFlow, by hand on a step of two convolutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from drawn_steps import V100, changed, device_names, graph_of, start_us, step_us

from stepscope.errors import ChangeError
from stepscope.graph import Graph, select
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table

MAP = 'Input_Dims=[[1,{},10,10],[8,8,3,3]] Input_type=["float","float"]'
ONE, TWO = MAP.format(100), MAP.format(200)  # 40,000 and 80,000 bytes
# Launched in the first 20 us, on the device one after the other from 20 to 150.
STEP = f"""
    main     |   0 30 | ProfilerStep#0
    main     |   1 10 | ## forward ##
    main     |   1  3 | aten::convolution      | seq=1 {ONE}
    main     |   1  2 | cudaLaunchKernel       | corr=1
    main     |   4  6 | aten::relu             | seq=2 Input_Dims=[[200,100]] Input_type=["float"]
    main     |   4  5 | cudaLaunchKernel       | corr=2
    main     |   7  9 | aten::convolution2     | seq=3 {TWO}
    main     |   7  8 | cudaLaunchKernel       | corr=3
    main     |  11 20 | ## backward ##
    main     |  11 13 | autograd::engine::evaluate_function: ConvolutionBackward1 | seq=3 fwd=1
    main     |  11 12 | cudaLaunchKernel       | corr=4
    main     |  14 16 | autograd::engine::evaluate_function: ReluBackward0 | seq=2 fwd=1
    main     |  14 15 | cudaLaunchKernel       | corr=5
    main     |  17 19 | autograd::engine::evaluate_function: ConvolutionBackward0 | seq=1 fwd=1
    main     |  17 18 | cudaLaunchKernel       | corr=6
    stream 7 |  20 40 | implicit_gemm_first    | corr=1
    stream 7 |  40 50 | elementwise_relu       | corr=2
    stream 7 |  50 80 | implicit_gemm_second   | corr=3
    stream 7 |  80 110 | dgrad_second          | corr=4
    stream 7 | 110 120 | elementwise_back      | corr=5
    stream 7 | 120 150 | dgrad_first           | corr=6
"""


@pytest.fixture
def graph() -> Graph:
    return graph_of(STEP, devices=V100)


def with_modules(graph: Graph) -> Graph:
    """Modules `body.first` and `body.second`, whose convolutions they run."""
    table = Table(MODULES, {"parent": [-1, 0, 1, 1], "path": ["", "body", "body.a", "body.b"]})
    module = np.full(len(graph), -1)
    for number, name, calls in ((2, "*_first", (1, 17)), (3, "*_second", (7, 11))):
        module[select(graph, name=name)] = number
        start = graph.trace.events["start_ns"][graph.tasks["event"]]
        launches = select(graph, name="cudaLaunchKernel")
        module[launches & np.isin(start, [call * 1000 for call in calls])] = number
    return replace(graph.with_tasks(module=module), trace=graph.trace.with_table(table))


def test_the_step_as_it_is(graph: Graph) -> None:
    assert step_us(graph) == 150


# -- checkpoint

ONLY_REPEATED = "call_us=0,saved_us=0"


def test_forward_is_done_again_in_front_of_backward(graph: Graph) -> None:
    result = changed(with_modules(graph), f"checkpoint:module=body.b,{ONLY_REPEATED}")
    assert device_names(result)[3:5] == ["implicit_gemm_second again", "dgrad_second"]
    assert step_us(result) == 150 + 30
    assert start_us(result)["dgrad_second"] == 80 + 30
    launches = [name for name in start_us(result) if name.startswith("cudaLaunchKernel")]
    assert launches == ["cudaLaunchKernel", "cudaLaunchKernel again"]


def test_of_modules_inside_each_other_the_outermost_is_repeated(graph: Graph) -> None:
    result = changed(with_modules(graph), f"checkpoint:module=body*,{ONLY_REPEATED}")
    assert device_names(result)[3:6] == [
        "implicit_gemm_first again",
        "implicit_gemm_second again",
        "dgrad_second",
    ]
    assert step_us(result) == 150 + 20 + 30


@pytest.fixture
def layer_on_a_cpu() -> Graph:
    """A product and its ReLU in a module, and a weight update; the module has 3 of 4 bytes."""
    graph = graph_of("""
        main |   0 200 | ProfilerStep#0
        main |  10  35 | ## forward ##
        main |  10  30 | aten::mm   | seq=1
        main |  30  35 | aten::relu | seq=2
        main |  35  80 | ## backward ##
        main |  35  40 | autograd::engine::evaluate_function: ReluBackward0 | seq=2 fwd=1
        main |  40  80 | autograd::engine::evaluate_function: MmBackward0   | seq=1 fwd=1
        main |  80 160 | Optimizer.step#SGD.step
    """)
    columns = {"parent": [-1, 0], "path": ["", "layer"], "parameter_bytes": [4, 3]}
    inside = select(graph, name="aten::*") | select(graph, name="*Backward0")
    graph = graph.with_tasks(module=np.where(inside, 1, -1))
    return replace(graph, trace=graph.trace.with_table(Table(MODULES, columns)))


def test_on_the_cpu_operators_are_repeated(layer_on_a_cpu: Graph) -> None:
    result = changed(layer_on_a_cpu, f"checkpoint:module=layer,{ONLY_REPEATED}")
    assert step_us(result) == 200 + 25


def test_checkpointing_takes_time_for_each_call_and_saved_tensor(layer_on_a_cpu: Graph) -> None:
    # Of the product both operands are saved, of the ReLU its result.
    result = changed(layer_on_a_cpu, "checkpoint:module=layer,call_us=50,saved_us=3")
    assert step_us(result) == 200 + 25 + 50 + (2 + 1) * 3


def test_where_gradients_are_accumulated_each_turn_repeats_its_own_forward() -> None:
    turn = """
        main | {0} {25} | ## forward ##
        main | {0} {20} | aten::mm | seq={n}
        main | {30} {70} | ## backward ##
        main | {30} {70} | autograd::engine::evaluate_function: MmBackward0 | seq={n} fwd=1
    """
    lines = ["main | 0 300 | ProfilerStep#0", "main | 200 260 | Optimizer.step#SGD.step"]
    for number, begins in ((1, 10), (2, 90)):
        text = turn.replace("{n}", str(number))
        for at in (0, 20, 25, 30, 70):
            text = text.replace(f"{{{at}}}", str(begins + at))
        lines.append(text)
    graph = graph_of("\n".join(lines))
    inside = select(graph, name="aten::*") | select(graph, name="*Backward0")
    table = Table(MODULES, {"parent": [-1, 0], "path": ["", "layer"]})
    graph = replace(graph.with_tasks(module=np.where(inside, 1, -1)), trace=graph.trace.with_table(table))
    result = changed(graph, "checkpoint:module=layer,call_us=50,saved_us=0")
    assert step_us(result) == 300 + 2 * (20 + 50)
    order = [name for name, _ in start_us(result, every=True) if name.startswith("aten::mm")]
    assert order == ["aten::mm", "aten::mm again"] * 2


# -- vdnn


def test_maps_are_offloaded_beside_their_convolution(graph: Graph) -> None:
    # 40,000 and 80,000 bytes at 4 bytes a ns: 10 and 20 us, hidden behind kernels of 20 and 30. The
    # second is then back 20 after its convolution; the first is, when it is needed.
    times = dict(start_us(changed(graph, "vdnn:gb_per_s=4"), every=True))
    assert times["dgrad_second"] == pytest.approx(80 + 20, abs=2)
    assert times["dgrad_first"] == pytest.approx(100 + 30 + 10, abs=2)


def test_a_slow_link_stalls_backward_until_the_map_is_back(graph: Graph) -> None:
    # At 1 byte a ns 40 and 80 us. The first offload begins with its kernel; the relu waits for it.
    # The second begins when its input is there, at 70, and holds backward to 150; only then is the
    # map copied back, to 230. The first map's way back, 40, is hidden behind 30 + 10 us of work.
    times = start_us(changed(graph, "vdnn:gb_per_s=1"), every=True)
    copies = [time for name, time in times if name in ("offload", "prefetch")]
    assert copies == pytest.approx([20, 70, 150, 230], abs=2)
    assert dict(times)["dgrad_second"] == pytest.approx(230, abs=2)
    assert dict(times)["dgrad_first"] == pytest.approx(270, abs=2)


PINNED, PAGEABLE = "Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pageable -> Device)"


@pytest.mark.parametrize(
    ("copies", "device", "rate", "whose"),
    [
        (
            (
                f"21 23 | {PINNED} | bytes=8000000",
                f"24 25 | {PINNED} | bytes=7000000",
                f"26 27 | {PINNED} | bytes=400",  # little but its start
                f"28 30 | {PAGEABLE} | bytes=8000000",
            ),
            "NVIDIA H200",
            5000.0,
            "recorded copies of pinned memory to the device (2): 5000 GB/s by default",
        ),
        ((f"28 30 | {PAGEABLE} | bytes=8000000",), "NVIDIA H200", 63.0, "16 lanes of PCIe 5.0 (H200)"),
        ((), "Tesla V100-SXM2-16GB", 15.75, "16 lanes of PCIe 3.0 (V100)"),
        ((), "NVIDIA Z9", 15.75, "nor the device's data sheet are known"),
    ],
)
def test_copies_are_as_fast_as_recorded_ones_else_as_the_device_s_link(
    copies: tuple[str, ...], device: str, rate: float, whose: str
) -> None:
    text = "\n".join([STEP, *(f"stream 9 | {copy}" for copy in copies)])
    graph = graph_of(text, devices=({**V100[0], "name": device},))
    answer = predict(graph, [parse_request("vdnn", CHANGES)])
    assert answer.changes == (f"vdnn:gb_per_s={rate}",)
    assert any(whose in text for text in answer.assumptions)
    assert predict(graph, [parse_request("vdnn:gb_per_s=4", CHANGES)]).changes == ("vdnn:gb_per_s=4.0",)


# -- gist


def test_maps_that_convolutions_read_from_a_relu_are_encoded(graph: Graph) -> None:
    # The relu reads and writes 80,000 bytes each in 10 us: 16 bytes a ns. Half of it zero, rows
    # take 2 + 0.625 passes to encode and 1.625 to decode over the second's 80,000 bytes, 5 us each.
    result = changed(graph, "gist:sparsity=0.5")
    assert device_names(result)[3:6] == ["ssdc encode", "ssdc decode", "dgrad_second"]
    assert step_us(result) == pytest.approx(150 + 5 * (2.625 + 1.625), abs=0.1)
    # Nothing is read in front of the first convolution, so nothing tells that it is a ReLU's.
    assert step_us(changed(graph, "gist:lossy=yes,sparsity=1")) == pytest.approx(150 + 15, abs=0.1)


def test_a_relu_before_a_pooling_keeps_a_bit_a_value() -> None:
    pooled = STEP.replace("aten::convolution2", "aten::max_pool2d").replace(TWO, ONE)
    result = changed(graph_of(pooled, devices=V100), "gist")
    assert device_names(result)[3] == "binarize"
    assert step_us(result) == pytest.approx(150 + 5 * (1 + 1 / 32), abs=0.1)


# -- metaflow


def test_layers_are_deleted_and_resized(graph: Graph) -> None:
    known = with_modules(graph)
    # The relu is launched at 3, one earlier, and starts 19 later, as the first kernel did: at 22.
    assert step_us(changed(known, "metaflow:delete=body.a")) == 22 + 10 + 30 + 30 + 10
    assert step_us(changed(known, "metaflow:resize=body.b,factor=1.5")) == 150 + 15 + 15


def test_parameters_that_are_gone_are_not_updated(layer_on_a_cpu: Graph) -> None:
    without = step_us(changed(layer_on_a_cpu, "metaflow:delete=layer"))
    halved = step_us(changed(layer_on_a_cpu, "metaflow:resize=layer,factor=0.5"))
    assert without == 200 - 25 - 45 - 80 * 3 / 4
    assert halved == 200 - (25 + 45) / 2 - 80 * 3 / 4 / 2


def test_layers_that_read_the_same_are_merged(graph: Graph) -> None:
    # 20 + 30 in forward, which the first kernel does, and 30 + 30 in backward, as long as before
    # where compute binds; the other launches go.
    result = changed(with_modules(graph), "metaflow:merge=body.a|body.b")
    assert device_names(result) == [
        "implicit_gemm_first",
        "elementwise_relu",
        "dgrad_second",
        "elementwise_back",
    ]
    durations = result.tasks["duration_ns"][result.on_device] / 1000
    assert durations.tolist() == [50, 10, 60, 10]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("checkpoint:module=x", "no forward work is in a module that matches 'x'"),
        ("metaflow", "expected merge=, delete= or resize="),
        ("metaflow:delete=x", "no layer with tasks matches 'x'"),
        ("metaflow:merge=body.a", "merge needs two layers with matrix products or convolutions"),
        ("vdnn:gb_per_s=0", "expected gb_per_s above 0, found 0.0"),
        ("gist:sparsity=2", "expected sparsity from 0 to 1, found 2.0"),
    ],
)
def test_why_it_does_not_apply(graph: Graph, text: str, reason: str) -> None:
    with pytest.raises(ChangeError, match=reason):
        changed(with_modules(graph), text)


def test_without_shapes_maps_have_no_size() -> None:
    bare = graph_of(STEP.replace(ONE, "").replace(TWO, ""), devices=V100)
    with pytest.raises(ChangeError, match="vdnn: the input shapes of convolutions were not"):
        changed(bare, "vdnn")
    with pytest.raises(ChangeError, match="gist: the input shapes of these operators were not"):
        changed(bare, "gist")


def test_without_a_device_there_is_nothing_to_offload_from() -> None:
    graph = graph_of("main | 0 100 | ProfilerStep#0\nmain | 10 60 | aten::linear")
    for name in ("vdnn", "gist"):
        with pytest.raises(ChangeError, match=f"{name}: these steps have no device work"):
            changed(graph, name)


def test_what_is_checkpointed_already_is_left_alone(graph: Graph) -> None:
    known = with_modules(graph)
    again = np.zeros(len(known.trace.events), np.int8)
    again[known.tasks["event"][select(known, name="dgrad_second")]] = 1
    known = replace(known, trace=known.trace.with_events(recompute=again))
    with pytest.raises(ChangeError, match="backward recomputes forward already"):
        changed(known, "checkpoint:module=body.b")


def test_a_small_gain_of_merging_is_told_with_a_range_that_holds_none(graph: Graph) -> None:
    # What merged products gain or lose by their shape is more than the launches that they save.
    request = parse_request("metaflow:merge=body.a|body.b", CHANGES)
    answer = predict(with_modules(graph), [request])
    assert answer.range[1] >= 1.12 * answer.predicted_step_ms
    assert any("merged products are as efficient as separate ones" in one for one in answer.assumptions)


def test_changes_that_cost_time_are_not_ranked() -> None:
    assert not any(CHANGES[name].ranked for name in ("checkpoint", "vdnn", "gist", "metaflow"))
