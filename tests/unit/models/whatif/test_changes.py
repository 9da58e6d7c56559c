"""Each change on a step whose new length is worked out by hand, and when it does not apply."""

from __future__ import annotations

import pytest
from drawn_steps import V100, changed, device_names, graph_of, step_us

from stepscope.errors import ChangeError, GraphError
from stepscope.graph import Graph
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.changes import faster_gpu
from stepscope.models.whatif.prediction import predict

# Launches at 10, 20 and 30; the device works from 20 to 170; the CPU is done at 100.
FORWARD = """
    main     |   0 100 | ProfilerStep#0
    main     |  10  38 | ## forward ##
    main     |  10  16 | aten::mm
    main     |  12  14 | cudaLaunchKernel   | corr=7
    main     |  20  26 | aten::relu
    main     |  22  24 | cudaLaunchKernel   | corr=8
    main     |  30  36 | aten::add
    main     |  32  34 | cudaLaunchKernel   | corr=9
    stream 7 |  22 112 | volta_sgemm_128x64 | corr=7
    stream 7 | 112 142 | elementwise_relu   | corr=8
    stream 7 | 142 162 | elementwise_add    | corr=9
"""
# The same with a product of 390, so that the device stays the slower side.
LONG = FORWARD.replace("22 112", "22 412").replace("112 142", "412 442").replace("142 162", "442 462")


@pytest.fixture
def forward() -> Graph:
    return graph_of(FORWARD, devices=V100)


def refusal(graph: Graph, text: str) -> str:
    with pytest.raises((ChangeError, GraphError)) as caught:
        changed(graph, text)
    return str(caught.value)


def test_scale(forward: Graph) -> None:
    assert step_us(forward) == 162
    assert step_us(forward, "scale:select=kind=gemm,factor=0.5") == 162 - 45
    assert step_us(forward, "scale:select=stage=forward+name=*relu,factor=2") == 162 + 30
    assert refusal(forward, "scale:select=name=x,factor=2") == "scale: no task matches name=x"


def test_amp_takes_the_devices_own_speedups(forward: Graph) -> None:
    # Volta: 90 / 3 + (30 + 20) / 2 = 55, begun at 22; the CPU is then the slower side.
    assert step_us(forward, "amp") == 100
    graph = graph_of(LONG, devices=V100)
    assert step_us(graph, "amp") == 22 + 390 / 3 + 50 / 2
    assert step_us(graph, "amp:estimate=low") == 22 + 390 / 2 + 50
    assert step_us(graph, "amp:estimate=high") == pytest.approx(22 + 390 / 8 + 50 / 2, abs=9)


def test_amp_knows_a_device_whose_trace_has_its_name_alone() -> None:
    """As XLA's profiles."""
    named, whole = (
        graph_of(LONG, devices=({"name": "NVIDIA H200", **more},)) for more in ({}, {"computeMajor": 9})
    )
    assert step_us(named, "amp") == step_us(whole, "amp") < step_us(named)


def test_amp_gains_bandwidth_where_the_shapes_of_a_product_say_that_it_waits_for_memory() -> None:
    # One row: half an operation a byte. A square product of 512 computes 85, and gains 3x above.
    shapes = 'aten::mm | Input_Dims=[[{rows},512],[512,512]] Input_type=["float","float"]'
    flat, square = (LONG.replace("aten::mm", shapes.format(rows=rows)) for rows in (1, 512))
    assert step_us(graph_of(flat, devices=V100), "amp") == 22 + 390 / 2 + 50 / 2
    assert step_us(graph_of(square, devices=V100), "amp") == 22 + 390 / 3 + 50 / 2


def test_amp_says_why_it_does_not_apply() -> None:
    amd = ({"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9},)
    assert refusal(graph_of(FORWARD, devices=amd), "amp") == (
        "amp: no speedups are known for AMD Instinct MI300X"
    )
    unnamed = ({"id": 0, "name": "", "computeMajor": 9, "warpSize": 64},)  # as ROCm's profiler may
    assert refusal(graph_of(FORWARD, devices=unnamed), "amp") == "amp: no speedups are known for AMD"
    assert "the trace does not name its device" in refusal(graph_of(FORWARD), "amp")
    for name, why in (
        ("volta_fp16_s884gemm", "no matrix product or convolution runs in 32 bits"),
        ("gemm_kernel_7f3a", "nothing shows that products run in 32 bits; record their shapes"),
    ):
        other = FORWARD.replace("volta_sgemm_128x64", name)
        assert refusal(graph_of(other, devices=V100), "amp") == f"amp: {why}"


def test_kernel_fusion_joins_neighbors(forward: Graph) -> None:
    fused = changed(forward, "kernel_fusion")
    assert device_names(fused) == ["volta_sgemm_128x64", "elementwise_relu"]
    assert step_us(forward, "kernel_fusion") == 162 - 20
    assert step_us(forward, "kernel_fusion:estimate=low") == 162
    assert step_us(forward, "kernel_fusion:estimate=high") == 162 - 25
    for fused_already in ("act_and_mul_kernel", "triton_poi_fused_relu_3"):
        custom = FORWARD.replace("elementwise_relu", fused_already)
        assert custom != FORWARD
        assert "no two consecutive kernels" in refusal(graph_of(custom), "kernel_fusion")
    alone = "\n".join(line for line in FORWARD.splitlines() if "corr=9" not in line)
    assert "no two consecutive kernels" in refusal(graph_of(alone), "kernel_fusion")
    on_a_cpu = "main | 0 100 | ProfilerStep#0\nmain | 10 20 | aten::add\nmain | 20 30 | aten::mul"
    assert "no device work" in refusal(graph_of(on_a_cpu), "kernel_fusion")


@pytest.mark.parametrize(
    ("programs", "names"),
    [
        (("step", "step", "step", "step"), None),  # XLA has fused within it what it can
        (("one", "one", "two", "two"), ["add_fusion_0", "add_fusion_1", "add_fusion_3"]),
        (("one", "two", "three", "four"), ["add_fusion_0"]),
    ],
)
def test_kernel_fusion_leaves_what_one_program_of_xla_runs(
    programs: tuple[str, ...], names: list[str] | None
) -> None:
    lines = ["main | 0 300 | train#step_num=0 | cat=annotation"]
    for number, program in enumerate(programs):
        begin, scope = 10 + 20 * number, f"jit({program})/jvp()/add"
        lines += [
            f"main | {begin} {begin + 5} | cudaLaunchKernel | corr={number + 1}",
            f"stream 7 | {begin + 10} {begin + 14} | add_fusion_{number} | corr={number + 1} scope={scope}",
        ]
    graph = graph_of("\n".join(lines), framework="jax")
    if names is None:
        assert "no two consecutive kernels (in XLA: programs) are elementwise" in refusal(
            graph, "kernel_fusion"
        )
    else:
        assert device_names(changed(graph, "kernel_fusion")) == names


def test_cuda_graphs_leave_the_device_as_the_only_limit() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  90 | ## forward ##
        main     | 10  14 | cudaLaunchKernel | corr=7
        main     | 70  74 | cudaLaunchKernel | corr=8
        stream 7 | 20  30 | sgemm            | corr=7
        stream 7 | 80  85 | relu             | corr=8
    """)
    # 10 before forward, 10 from launch to kernel, 10 + 5 on the device; the CPU ends after 10 + 10.
    assert step_us(graph) == 100
    assert step_us(graph, "cuda_graphs") == 35
    for call in ("cudaGraphLaunch", "hipStreamEndCapture"):
        again = graph_of(f"""
            main     |  0 50 | ProfilerStep#0
            main     | 10 14 | cudaLaunchKernel | corr=7
            main     | 20 24 | {call}           | corr=8
            stream 7 | 20 30 | sgemm            | corr=7
        """)
        assert "launch or capture CUDA graphs already" in refusal(again, "cuda_graphs")


def test_a_long_gap_within_a_graph_may_stay() -> None:
    graph = graph_of("""
        main     |  0 1600 | ProfilerStep#0
        main     | 10 1580 | ## forward ##
        main     | 10   14 | cudaLaunchKernel | corr=7
        main     | 60   64 | cudaLaunchKernel | corr=8
        main     | 1500 1504 | cudaLaunchKernel | corr=9
        stream 7 | 20   30 | sgemm            | corr=7
        stream 7 | 70   75 | relu             | corr=8
        stream 7 | 1510 1515 | relu           | corr=9
    """)
    # Of the calls nothing is left; the gap of 1436 has no cause in the file.
    least, most = predict(graph, [parse_request("cuda_graphs", CHANGES)]).range
    assert most - least == pytest.approx(1.436, rel=0.1)
    assert step_us(graph, "cuda_graphs:pauses=1") - step_us(graph, "cuda_graphs") == pytest.approx(
        1436, abs=20
    )
    assert "expected pauses from 0 to 1" in refusal(graph, "cuda_graphs:pauses=2")


def test_a_cuda_graph_leaves_what_the_loop_does_around_it() -> None:
    graph = graph_of("""
        main     |  0 300 | ProfilerStep#0
        main     | 10  50 | ## forward ##
        main     | 10  14 | cudaLaunchKernel | corr=7
        main     | 60 100 | ## backward ##
        main     | 60  64 | cudaLaunchKernel | corr=8
        stream 7 | 20  30 | sgemm            | corr=7
        stream 7 | 70  75 | sgemm            | corr=8
    """)
    # 10 before forward and 200 of Python after backward; the 90 between are in the graph.
    assert step_us(graph) == 300
    assert step_us(graph, "cuda_graphs") == 210


def test_the_data_loader_takes_no_time() -> None:
    graph = graph_of("""
        main     |  0 100 | ProfilerStep#0
        main     |  0  60 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main     | 65  95 | ## forward ##
        main     | 70  72 | cudaLaunchKernel | corr=7
        stream 7 | 75 105 | sgemm            | corr=7
    """)
    # What follows the loader, 5 until forward, is the loop's own.
    assert step_us(graph, "dataloader") == 105 - 60


def test_without_loading_the_data_loader_is_no_gain(forward: Graph) -> None:
    assert "spends no time on data loading" in refusal(forward, "dataloader")


COLLECTIVE = """
    main      |  0 100 | ProfilerStep#0
    main      | 10  12 | cudaLaunchKernel    | corr=7
    main      | 13  14 | cudaStreamWaitEvent | corr=8
    main      | 14  16 | cudaLaunchKernel    | corr=9
    main      | 20  21 | cudaStreamWaitEvent | corr=10
    main      | 22  24 | cudaLaunchKernel    | corr=11
    stream 7  | 20  60 | wgrad_kernel        | corr=7
    stream 20 | 60 140 | ncclAllReduce       | corr=9
    stream 7  | 140 160 | adam_kernel        | corr=11
"""


def test_twice_the_bandwidth_halves_collectives(forward: Graph) -> None:
    assert step_us(graph_of(COLLECTIVE)) == 160
    assert step_us(graph_of(COLLECTIVE), "bandwidth:factor=2") == 160 - 40
    assert step_us(graph_of(COLLECTIVE), "bandwidth:factor=0.5") == 160 + 80
    assert refusal(forward, "bandwidth") == "bandwidth: these steps have no collectives"
    assert "above 0" in refusal(graph_of(COLLECTIVE), "bandwidth:factor=0")


def test_without_a_synchronization_the_cpu_goes_on() -> None:
    graph = graph_of("""
        main     |   0 100 | ProfilerStep#0
        main     |  10  12 | cudaLaunchKernel      | corr=7
        main     |  20  65 | cudaStreamSynchronize | corr=8
        main     |  90  92 | cudaLaunchKernel      | corr=9
        stream 7 |  20  60 | first                 | corr=7
        stream 7 | 100 120 | second                | corr=9
    """)
    # The second launch comes at 45 instead of 90, since the Python before it stays; its work follows
    # the first at 60.
    assert step_us(graph) == 120
    assert step_us(graph, "no_sync") == 80
    assert "no call that matches 'x'" in refusal(graph, "no_sync:name=x")
    assert step_us(graph, "no_sync:awaits=first") == 80
    assert "no call that matches 'second'" in refusal(graph, "no_sync:awaits=second")
    assert "no call that matches 'aten::item'" in refusal(graph, "no_sync:operator=aten::item")


@pytest.mark.parametrize("python", [0, 40, 400, 3000])
@pytest.mark.parametrize(
    ("change", "without"),
    [
        # The CPU launches by 40; after the wait the Python is left, and after it what is launched next.
        ("no_sync", 20),
        ("cuda_graphs", 100),
    ],
)
def test_python_after_a_wait_for_the_device_stays(python: int, change: str, without: int) -> None:
    """Two steps that read a value and go on in Python, such as a loop that samples tokens."""
    lines = []
    for step in range(2):
        begin = step * (120 + python)
        lines += [
            f"main | {begin} {begin + 119 + python} | ProfilerStep#{step}",
            f"main | {begin} {begin + 20} | aten::mm",
            f"main | {begin + 10} {begin + 20} | cudaLaunchKernel | corr={2 * step}",
            f"main | {begin + 20} {begin + 110} | cudaStreamSynchronize | corr={2 * step + 1}",
            f"main | {begin + 110 + python} {begin + 119 + python} | aten::view",
            f"stream 7 | {begin + 20} {begin + 100} | sgemm | corr={2 * step}",
        ]
    after = step_us(graph_of("\n".join(lines)), change)
    assert after >= max(python, 80)
    assert after <= max(python + without + 10, 120)


UPDATE = """
    main     |   0 100 | ProfilerStep#0
    main     |  10  70 | Optimizer.step#{name}.step
    main     |  12  14 | cudaLaunchKernel   | corr=7
    main     |  32  34 | cudaLaunchKernel   | corr=8
    main     |  52  54 | cudaLaunchKernel   | corr=9
    stream 7 |  20  25 | elementwise_mul    | corr=7
    stream 7 |  40  45 | elementwise_addcmul| corr=8
    stream 7 |  60  65 | elementwise_addcdiv| corr=9
"""


def test_a_fused_optimizer_is_one_kernel_and_one_launch() -> None:
    graph = graph_of(UPDATE.format(name="Adam"))
    fused = changed(graph, "fused_optimizer")
    assert device_names(fused) == ["elementwise_mul"]
    assert fused.tasks["duration_ns"][fused.on_device].tolist() == [15_000]
    # Of 58 on the CPU after the launch at 12, only the call itself (2) is left, and 30 at the end
    # go with the optimizer's last piece: the step ends with the device, at 20 + 15.
    assert step_us(graph, "fused_optimizer") == 35


@pytest.mark.parametrize(
    ("us", "launched", "stays"),
    [(40, "adam_kernel", False), (5000, "adam_kernel", True), (40, "Memcpy HtoD", True), (5000, "", True)],
)
def test_what_computes_on_the_cpu_is_in_no_graph(us: int, launched: str, stays: bool) -> None:
    """Such as the update of an optimizer that is offloaded to the CPU, in one operator or in many."""
    graph = graph_of(
        f"""
        main     |  0 {us + 200} | ProfilerStep#0
        main     | 10  20 | aten::mm
        main     | 12  14 | cudaLaunchKernel | corr=7
        main     | 30 {us + 60} | Optimizer.step#DeepSpeedCPUAdam.step
        main     | 40 {us + 40} | CPUAdamBuilder::adam_update
        stream 7 | 20  90 | sgemm | corr=7
    """
        + f"""
        main     | {us + 50} {us + 54} | cudaLaunchKernel | corr=8
        stream 7 | {us + 60} {us + 62} | {launched} | corr=8
    """
        * bool(launched)
    )
    assert (step_us(graph) - step_us(graph, "cuda_graphs") < us) == stays


def test_python_after_a_fused_optimizer_stays() -> None:
    graph = graph_of(UPDATE.format(name="Adam").replace("0 100 |", "0 3070 |"))
    # 3 ms after the optimizer, less what may be Python between two calls.
    assert 2950 <= step_us(graph, "fused_optimizer") <= 3030


def test_each_update_of_several_optimizers_is_one_kernel() -> None:
    graph = graph_of("""
        main     |   0 200 | ProfilerStep#0
        main     |  10  60 | Optimizer.step#Adam.step
        main     |  12  14 | cudaLaunchKernel | corr=1
        main     |  20  22 | cudaLaunchKernel | corr=2
        main     | 100 160 | Optimizer.step#SGD.step
        main     | 110 112 | cudaLaunchKernel | corr=3
        main     | 120 122 | cudaLaunchKernel | corr=4
        main     | 165 190 | Optimizer.step#RMSprop.step
        main     | 170 172 | cudaLaunchKernel | corr=5
        main     | 180 182 | cudaLaunchKernel | corr=6
        stream 7 |  20  30 | elementwise_add | corr=1
        stream 7 |  30  35 | elementwise_mul | corr=2
        stream 7 | 115 120 | elementwise_add | corr=3
        stream 7 | 125 132 | elementwise_mul | corr=4
        stream 7 | 175 178 | elementwise_add | corr=5
        stream 7 | 185 189 | elementwise_mul | corr=6
    """)
    fused = changed(graph, "fused_optimizer")
    assert fused.tasks["duration_ns"][fused.on_device].tolist() == [15_000, 12_000, 3_000, 4_000]


# Operators of torch.optim's `foreach` loops on CUDA, and bytes of an element that each reads and writes.
ADAM = {"lerp_": 12, "mul_": 8, "addcmul_": 12, "sqrt": 8, "div_": 8, "add_": 8, "addcdiv_": 16}
MOVED = {
    "Adam": ([*ADAM.items()], 28),
    "AdamW": ([("mul_", 8), *ADAM.items()], 28),  # the decay of weights
    "Adagrad": ([("addcmul_", 12), ("sqrt", 8), ("add_", 8), ("mul", 8), ("addcdiv_", 16)], 20),
    "SGD": ([("mul_", 8), ("add_", 12), ("add_", 12)], 20),  # with momentum
}


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("name", MOVED)
def test_a_fused_update_takes_the_time_of_the_bytes_that_are_left(name: str, parts: int) -> None:
    """Kernels at 1 us a byte of an element, for all parameters at once or in several groups."""
    operators, fused = MOVED[name]
    lines, at = [f"main | 5 400 | Optimizer.step#{name}.step"], 100
    for number, (operator, moved) in enumerate(operators * parts):
        begin = 10 + 10 * number
        lines += [
            f"main | {begin} {begin + 8} | aten::_foreach_{operator}",
            f"main | {begin + 1} {begin + 2} | cudaLaunchKernel | corr={number}",
            f"stream 7 | {at} {(at := at + moved)} | multi_tensor_apply_kernel | corr={number}",
        ]
    graph = graph_of("\n".join(["main | 0 410 | ProfilerStep#0", *lines]))
    after = changed(graph, "fused_optimizer")
    assert after.tasks["duration_ns"][after.on_device].tolist() == pytest.approx(
        [1000 * fused * parts], abs=1
    )
    # Only Adam was compared with measurements.
    assert CHANGES["fused_optimizer"].error_on(graph) == (0.01 if "Adam" in name else 0.13)


def test_an_optimizer_without_state_has_none_to_lose() -> None:
    plain = UPDATE.format(name="SGD").replace("addcdiv", "add")
    plain = plain.replace("main     |  12", "main | 11 60 | aten::_foreach_add_\n    main | 12")
    assert refusal(graph_of(plain), "stateless_optimizer") == (
        "stateless_optimizer: the optimizer keeps no state, it only adds gradients"
    )
    momentum = plain.replace("main     |  32", "main | 31 40 | aten::_foreach_mul_\n    main | 32")
    assert step_us(graph_of(momentum), "stateless_optimizer") <= step_us(graph_of(momentum))


def test_an_optimizer_that_is_fused_is_left_alone() -> None:
    text = UPDATE.format(name="AdamW")
    by_torch = text.replace("main     |  12", "main | 11 60 | aten::_fused_adamw_\n    main | 12")
    for fused in (by_torch, text.replace("elementwise", "triton_for_fused")):
        assert "is fused already" in refusal(graph_of(fused), "fused_optimizer")
    graph = graph_of(UPDATE.format(name="FusedAdam"))
    assert refusal(graph, "fused_optimizer") == (
        "fused_optimizer: FusedAdam is fused already, or cannot be; "
        "torch.optim fuses Adam, AdamW, SGD, Adagrad"
    )


def test_batch_normalization_halves_and_activations_vanish() -> None:
    graph = graph_of("""
        main     |   0 100 | ProfilerStep#0
        main     |  10  15 | aten::conv2d
        main     |  11  13 | cudaLaunchKernel | corr=7
        main     |  20  25 | aten::batch_norm
        main     |  21  23 | cudaLaunchKernel | corr=8
        main     |  30  35 | aten::relu_
        main     |  31  33 | cudaLaunchKernel | corr=9
        main     |  40  45 | aten::threshold_backward
        main     |  41  43 | cudaLaunchKernel | corr=10
        main     |  50  55 | autograd::engine::evaluate_function: CudnnBatchNormBackward0
        main     |  51  53 | cudaLaunchKernel | corr=11
        stream 7 |  20 120 | implicit_gemm    | corr=7
        stream 7 | 120 160 | bn_fw_tr         | corr=8
        stream 7 | 160 190 | elementwise      | corr=9
        stream 7 | 190 210 | elementwise      | corr=10
        stream 7 | 210 270 | bn_bw_tr         | corr=11
    """)
    assert device_names(changed(graph, "reconstruct_batchnorm")) == ["implicit_gemm", "bn_fw_tr", "bn_bw_tr"]
    assert step_us(graph, "reconstruct_batchnorm") == 270 - 20 - 30 - 20 - 30


def test_no_batch_normalization_nothing_to_reconstruct(forward: Graph) -> None:
    assert "no batch normalization" in refusal(forward, "reconstruct_batchnorm")


def test_a_faster_gpu_by_compute_and_by_memory() -> None:
    graph = graph_of(LONG, devices=V100)
    # FP32: 19.5 against 15.7 TFLOPS; memory: 1555 against 900 GB/s.
    assert step_us(graph, "faster_gpu:to=A100") == pytest.approx(
        22 + 15 + 385 * 15.7 / 19.5 + 40 * 900 / 1555, abs=0.01
    )
    kernels = 15 + 385 * 15.7 / 14.1 + 40
    for estimate, side in (("low", 1), ("high", -1)):  # of the first 22 us the CPU takes 12
        request = f"faster_gpu:to=V100-PCIe,estimate={estimate}"
        assert step_us(graph, request) == pytest.approx(10 + 12 * 1.5**side + kernels * 1.6**side, abs=0.01)
    assert refusal(graph, "faster_gpu:to=Z9") == (
        "faster_gpu: there are no rates for 'Z9'; choose one of B200, H200, H100, H100-PCIe, "
        "A100-80GB, A100-80GB-PCIe, A100, L40S, L4, A10, T4, RTX-4090, V100-PCIe, V100, "
        "MI300X, MI210"
    )
    on_cpu = "main | 0 50 | ProfilerStep#0\nmain | 5 40 | aten::mm"
    assert refusal(graph_of(on_cpu), "faster_gpu") == ("faster_gpu: these steps have no device work")


def test_no_gpu_is_called_faster_by_a_precision_that_is_not_known() -> None:
    """In FP32 an MI300X has twice the peak of a B200, in 16 bits half of it."""
    graph = graph_of(
        LONG.replace("volta_sgemm_128x64", "nvjet_tst_128x64"), devices=({"name": "NVIDIA B200"},)
    )
    assert "no known device runs these kernels faster than B200" in refusal(graph, "faster_gpu")


def test_a_gpu_that_hardly_gains_is_not_called_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {str(gpu["name"]): gpu for gpu in faster_gpu.known_gpus()}
    v100 = known["V100"]
    alike = {**v100, "name": "H100"} | {
        key: 1.05 * value for key, value in v100.items() if isinstance(value, float | int)
    }
    monkeypatch.setattr(faster_gpu, "known_gpus", lambda: [alike, known["A100"]])
    assert faster_gpu.choose_faster(graph_of(LONG, devices=V100)) == {"to": "A100"}


# The loader takes 40, code of the loop 60, then the device works for 100, until 210.
LOADING = """
    main     |   0 120 | ProfilerStep#0
    main     |   0  40 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     | 100 118 | ## forward ##
    main     | 102 116 | aten::mm
    main     | 104 110 | cudaLaunchKernel   | corr=7
    stream 7 | 110 210 | volta_sgemm_128x64 | corr=7
"""


def test_more_samples_are_loaded_and_prepared_before_they_are_computed() -> None:
    graph = graph_of(LOADING, devices=V100)
    request = parse_request("batch_size:factor=2", CHANGES)
    assert step_us(graph) == 210
    # Work grows from 100 to 200, the loader by 40, and the loop by 60, if that is per sample.
    assert step_us(graph, "batch_size:factor=2") == 410
    assert step_us(graph, "batch_size:factor=2,other=0") == 350
    assert step_us(graph, "batch_size:factor=0.5") == 105 + 5
    found = predict(graph, [request])
    assert found.range == pytest.approx((0.79 * 0.350, 1.21 * 0.410))  # errors of 21 % were measured
    assert any("the range also has them as before" in text for text in found.assumptions)
    assert refusal(graph, "batch_size:factor=2,other=3") == (
        "batch_size: expected other from 0 to 1, found 3.0"
    )


@pytest.mark.parametrize(
    ("asked", "shortest"), [("context_1(96)_generation_0(0)", 190), ("context_0(0)_generation_7(7)", 100)]
)
def test_decoding_may_take_as_long_for_more_requests(asked: str, shortest: int) -> None:
    """It mostly reads the weights, once for all requests."""
    graph = graph_of(f"""
        main     |  0  20 | execute_{asked} | cat=annotation
        main     |  2   4 | cudaLaunchKernel | corr=7
        stream 7 | 10 100 | sgemm            | corr=7
    """)
    assert step_us(graph, "batch_size:factor=2") == 190
    assert step_us(graph, "batch_size:factor=2,other=0") == shortest


def test_changes_compose_in_their_order(forward: Graph) -> None:
    twice = ["scale:select=kind=gemm,factor=0.6", "kernel_fusion"]
    assert step_us(forward, *twice) == 162 - 36 - 20


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quicker", "there is no change 'quicker'; choose one of amp, "),
        ("ampp", "there is no change 'ampp'; did you mean amp?"),
        ("faster_gpu:to=H10", "faster_gpu: there are no rates for 'H10'; did you mean H100?"),
        ("bandwidth:speed=2", "bandwidth: expected KEY=VALUE with KEY one of factor"),
        ("bandwidth:factor=fast", "bandwidth: expected factor to be a number from 1e-6"),
        ("bandwidth:factor=nan", "bandwidth: expected factor to be a number from 1e-6"),
        ("scale:select=kind=gemm,factor=1e300", "scale: expected factor to be a number from 1e-6 to"),
        ("ddp:workers=10000000", "ddp: expected workers to be a whole number up to 1e6"),
        ("gist:lossy=perhaps", "gist: expected lossy to be true or false, found 'perhaps'"),
        ("scale:factor=2", "scale needs select: scale:select="),
    ],
)
def test_what_is_written_wrongly_is_told(forward: Graph, text: str, message: str) -> None:
    assert refusal(forward, text).startswith(message)
