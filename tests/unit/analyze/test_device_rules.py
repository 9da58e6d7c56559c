"""Rules on steps of a device, drawn: each with a defect that the rule tells, and without it."""

from __future__ import annotations

import pytest
from drawn_findings import A100, V100, found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

# The CPU is done early: the device sets the length of the step.
BUSY = """
    main     |    0   50 | ProfilerStep#0
    main     |   10   12 | aten::mm
    main     |   10   12 | cudaLaunchKernel | corr=1
    stream 7 |   20  900 | volta_fp16_s884gemm_fp16_128x128 | corr=1
"""


def lines(*groups: str) -> str:
    return "\n".join(groups)


def launches(
    count: int,
    name: str,
    first: float,
    length: float,
    every: float,
    operator: str = "aten::add",
    start: int = 100,
) -> str:
    """Operators that each launch a kernel, `every` us after each other."""
    rows = []
    for number in range(count):
        at, correlation = first + number * every, start + number
        rows += [
            f"main | {at} {at + 1.5} | {operator}",
            f"main | {at + 0.2} {at + 1} | cudaLaunchKernel | corr={correlation}",
            f"stream 7 | {at + 2} {at + 2 + length} | {name} | corr={correlation}",
        ]
    return lines(*rows)


SOFTMAX = """
    main     |    0   50 | ProfilerStep#0
    main     |   10   12 | aten::mm
    main     |   10   12 | cudaLaunchKernel | corr=1
    main     |   14   16 | aten::softmax
    main     |   14   16 | cudaLaunchKernel | corr=2
    stream 7 |   20  600 | volta_fp16_s884gemm | corr=1
    stream 7 |  600  900 | cunn_SoftMaxForward | corr=2
"""
SYNCHRONISING = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   20 | aten::mm
    main     |   12   14 | cudaLaunchKernel      | corr=1
    stream 7 |   20  420 | volta_fp16_s884gemm   | corr=1
    main     |   30  440 | aten::item
    main     |   31  439 | aten::_local_scalar_dense
    main     |   32   36 | cudaMemcpyAsync       | corr=2
    main     |   37  438 | cudaStreamSynchronize | corr=3
    stream 7 |  421  422 | Memcpy DtoH (Device -> Pageable) | corr=2
    main     |  500  510 | aten::mm
    main     |  502  504 | cudaLaunchKernel      | corr=4
    stream 7 |  510  990 | volta_fp16_s884gemm   | corr=4
"""
COPYING = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10  400 | aten::to
    main     |   20  390 | aten::copy_
    main     |   30   40 | cudaMemcpyAsync       | corr=1
    main     |   41  380 | cudaStreamSynchronize | corr=2
    stream 7 |   50  370 | Memcpy HtoD ({memory} -> Device) | corr=1 bytes=64000000
    main     |  400  410 | aten::mm
    main     |  402  404 | cudaLaunchKernel      | corr=3
    stream 7 |  410  990 | volta_fp16_s884gemm   | corr=3
"""
LAYOUTS = """
    main     |    0   50 | ProfilerStep#0
    main     |   10   40 | aten::cudnn_convolution
    main     |   11   12 | cudaLaunchKernel | corr=1
    main     |   13   14 | cudaLaunchKernel | corr=2
    main     |   15   16 | cudaLaunchKernel | corr=3
    main     |   17   18 | cudaLaunchKernel | corr=4
    main     |   19   20 | cudaLaunchKernel | corr=5
    stream 7 |   20  100 | {kernel} | corr=1
    stream 7 |  100  200 | {kernel} | corr=2
    stream 7 |  200  600 | volta_fp16_s884cudnn_conv | corr=3
    stream 7 |  600  700 | {kernel} | corr=4
    stream 7 |  700  800 | {kernel} | corr=5
"""
INDEXING = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   20 | aten::{forward} | seq=5
    main     |   12   14 | cudaLaunchKernel      | corr=1
    stream 7 |   20   30 | index_kernel          | corr=1
    main     |  100  120 | {node} | seq=5 fwd=1
    main     |  102  118 | aten::_index_put_impl_
    main     |  104  106 | cudaLaunchKernel      | corr=2
    stream 7 |  110  900 | indexing_backward_kernel | corr=2
"""
UPDATING = lines(
    """
    main     |    0 1000 | ProfilerStep#0
    main     |    2    4 | aten::mm
    main     |    2    4 | cudaLaunchKernel | corr=1
    stream 7 |    4   90 | volta_fp16_s884gemm | corr=1
    main     |  100  990 | Optimizer.step#AdamW.step
    """,
    launches(40, "vectorized_elementwise_kernel", 110, 5, 20, "aten::mul_"),
)
FUSED = """
    main     |    0 1000 | ProfilerStep#0
    main     |  100  200 | Optimizer.step#AdamW.step
    main     |  110  120 | aten::_fused_adamw_
    main     |  112  114 | cudaLaunchKernel | corr=1
    stream 7 |  120  900 | multi_tensor_apply_kernel<FusedAdam> | corr=1
"""
PRODUCT = """
    main     |    0   50 | ProfilerStep#0
    main     |   10   12 | aten::mm | Input_Dims={dims} Input_type=["{kind}","{kind}"]
    main     |   10   12 | cudaLaunchKernel | corr=1
    stream 7 |   20  900 | {kernel} | corr=1
"""
HALF = "c10::Half"
ONE_BY_ONE = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10  100 | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |   20   30 | cudaLaunchKernel | corr=1
    stream 7 |   40   50 | gemv_kernel | corr=1
    main     |  500  600 | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |  520  530 | cudaLaunchKernel | corr=2
    stream 7 |  540  550 | gemv_kernel | corr=2
"""
REDUCING = """
    main      |    0   50 | ProfilerStep#0
    main      |   10   12 | aten::mm
    main      |   10   12 | cudaLaunchKernel | corr=1
    stream 7  |   20  {end} | volta_fp16_s884gemm | corr=1
    main      |   14   16 | cudaLaunchKernel | corr=2
    stream 20 |  100  990 | ncclDevKernel_AllReduce_Sum_f32 | corr=2
"""
ZEROING = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   12 | aten::mm
    main     |   10   12 | cudaLaunchKernel | corr=1
    stream 7 |   20  500 | volta_fp16_s884gemm | corr=1
    main     |  100  500 | Optimizer.zero_grad#SGD.zero_grad
    {zeroes}
    main     |  510  512 | aten::mm
    main     |  510  512 | cudaLaunchKernel | corr=3
    stream 7 |  900  990 | volta_fp16_s884gemm | corr=3
"""
ALLOCATING = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   12 | aten::mm
    main     |   10   12 | cudaLaunchKernel | corr=1
    stream 7 |   20  100 | volta_fp16_s884gemm | corr=1
    main     |  100  400 | {call}
    main     |  410  412 | aten::mm
    main     |  410  412 | cudaLaunchKernel | corr=2
    stream 7 |  420  500 | volta_fp16_s884gemm | corr=2
    main     | 1000 2000 | ProfilerStep#1
    main     | 1010 1012 | aten::mm
    main     | 1010 1012 | cudaLaunchKernel | corr=3
    stream 7 | 1020 1100 | volta_fp16_s884gemm | corr=3
    main     | 1100 1400 | {call}
    main     | 1410 1412 | aten::mm
    main     | 1410 1412 | cudaLaunchKernel | corr=4
    stream 7 | 1420 1500 | volta_fp16_s884gemm | corr=4
"""
WAITING_FOR_DATA = """
    main     |    0 1000 | ProfilerStep#0
    main     |   10   12 | aten::mm
    main     |   10   12 | cudaLaunchKernel | corr=1
    stream 7 |   20  200 | volta_fp16_s884gemm | corr=1
    main     |  210  {end} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     |  {end} 905 | aten::mm
    main     |  {end} 905 | cudaLaunchKernel | corr=2
    stream 7 |  {begin} 995 | volta_fp16_s884gemm | corr=2
"""

# rule: (what it finds in, what it is silent about)
DRAWN = {
    "hotspot": (SOFTMAX, BUSY),
    "kernel_fusion": (
        lines("main | 0 1000 | ProfilerStep#0", launches(60, "vectorized_elementwise_kernel", 10, 4, 6.5)),
        lines("main | 0 1000 | ProfilerStep#0", launches(60, "triton_poi_fused_add_7", 10, 4, 6.5)),
    ),
    "cpu_latency": (lines("main | 0 1000 | ProfilerStep#0", launches(10, "volta_gemm", 10, 5, 90)), BUSY),
    "input_bound": (WAITING_FOR_DATA.format(end=900, begin=910), WAITING_FOR_DATA.format(end=214, begin=220)),
    "synchronizing_calls": (SYNCHRONISING, BUSY),
    "pageable_copies": (COPYING.format(memory="Pageable"), COPYING.format(memory="Pinned")),
    "layout_conversions": (
        LAYOUTS.format(kernel="cudnn::ops::nchwToNhwcKernel"),
        LAYOUTS.format(kernel="cudnn_convolution_kernel"),
    ),
    "index_backward": (
        INDEXING.format(forward="index", node="IndexBackward0"),
        INDEXING.format(forward="index_select", node="IndexSelectBackward0"),
    ),
    "forward_backward": (
        INDEXING.format(forward="embedding", node="EmbeddingBackward0"),
        INDEXING.format(forward="embedding", node="EmbeddingBackward0").replace("110  900", "110  140"),
    ),
    "optimizer_loop": (UPDATING, FUSED),
    "fp32_matmul": (
        PRODUCT.format(dims="[[512,512],[512,512]]", kind="float", kernel="volta_sgemm_128x64_nn"),
        PRODUCT.format(dims="[[512,512],[512,512]]", kind=HALF, kernel="volta_fp16_s884gemm"),
    ),
    "odd_shapes": (
        PRODUCT.format(dims="[[512,768],[768,50257]]", kind=HALF, kernel="ampere_fp16_s16816gemm"),
        PRODUCT.format(dims="[[512,768],[768,50304]]", kind=HALF, kernel="ampere_fp16_s16816gemm"),
    ),
    "small_batch": (ONE_BY_ONE.format(rows=1), ONE_BY_ONE.format(rows=4096)),
    "exposed_communication": (REDUCING.format(end=200), REDUCING.format(end=985)),
    "zero_grad_memset": (ZEROING.format(zeroes="main | 110 490 | aten::zero_"), ZEROING.format(zeroes="")),
    "allocator_churn": (ALLOCATING.format(call="cudaMalloc"), ALLOCATING.format(call="cudaEventQuery")),
}


@pytest.mark.parametrize("rule", sorted(DRAWN))
def test_the_rule_finds_the_defect_and_nothing_without_it(rule: str) -> None:
    defect, sound = DRAWN[rule]
    devices = A100 if rule == "odd_shapes" else V100
    finding = found(rule, defect, devices=devices)
    assert finding is not None
    assert finding.evidence
    assert 0 < finding.gain.ms <= finding.step_ms
    assert found(rule, sound, devices=devices) is None


@pytest.mark.parametrize(
    ("dims", "strides", "is_odd"),
    [
        ("[[25089,768],[768,768]]", "", False),  # rows of 768
        ("[[768,25089],[25089,768]]", "[[1,768],[768,1]]", False),  # transposed: the gradient of a weight
        ("[[768,25089],[25089,768]]", "[[25089,1],[768,1]]", True),
        ("[[512,768],[768,50257]]", "[[768,1],[1,768]]", True),  # the result has rows of 50257
    ],
)
def test_the_number_of_rows_of_a_product_does_not_matter(dims: str, strides: str, is_odd: bool) -> None:
    text = PRODUCT.format(dims=dims, kind=HALF, kernel="ampere_fp16_s16816gemm")
    text = text.replace("Input_type", f"Input_Strides={strides} Input_type") if strides else text
    assert (found("odd_shapes", text, devices=A100) is not None) is is_odd
    amd = ({**A100[0], "name": "AMD Instinct MI300X"},)
    assert found("odd_shapes", text, devices=amd) is None


def test_a_synchronizing_call_tells_its_line_and_what_waiting_costs() -> None:
    text = SYNCHRONISING + "main | 25 450 | train.py(40): log | cat=python\n"
    finding = found("synchronizing_calls", text, devices=V100)
    assert finding is not None
    place = finding.evidence[0]
    assert (place.name, place.file, place.line, place.function) == ("aten::item", "train.py", 40, "log")
    # The second launch would come 400 us earlier; its work would follow what is copied, at 422.
    assert finding.gain.changes == ("no_sync:operator=aten::item",)
    assert finding.gain.ms == pytest.approx(0.098)


@pytest.mark.parametrize(
    ("copy", "call", "between", "says"),
    [
        # The CPU reads it next; or a step later, and waits for what it launched after the copy.
        ("Memcpy DtoH (Device -> Pinned)", "cudaStreamSynchronize", "Query", "copies from the device"),
        ("Memcpy DtoH (Device -> Pinned)", "cudaStreamSynchronize", "Launch", "explicit synchronization"),
        ("Memcpy HtoD (Pinned -> Device)", "cudaStreamSynchronize", "Query", "explicit synchronization"),
        ("Memcpy HtoD (Pinned -> Device)", "cudaEventSynchronize", "Query", "explicit synchronization"),
    ],
)
def test_a_wait_for_a_copy_to_the_host_is_not_to_be_removed(
    copy: str, call: str, between: str, says: str
) -> None:
    launch = "cudaLaunchKernel | corr=5\nstream 7 | 422 428 | volta_fp16_s884gemm | corr=5"
    finding = found(
        "synchronizing_calls",
        f"""
        main     |    0 1000 | ProfilerStep#0
        main     |   10   12 | cudaLaunchKernel      | corr=1
        stream 7 |   20  420 | volta_fp16_s884gemm   | corr=1
        main     |   30   34 | cudaMemcpyAsync       | corr=2
        stream 7 |  421  422 | {copy}                | corr=2
        main     |   36   38 | {launch if between == "Launch" else "cudaEventQuery"}
        main     |   40  430 | {call}                | corr=3
        main     |  700  704 | cudaLaunchKernel      | corr=4
        stream 7 |  710  990 | volta_fp16_s884gemm   | corr=4
        """,
    )
    assert finding is not None
    assert says in finding.what
    explicit = says == "explicit synchronization"
    assert ("Remove torch.cuda.synchronize()" in finding.advice) == (explicit and "Stream" in call)
    assert ("event.query()" in finding.advice) == ("Event" in call)


def test_a_blocking_copy_is_placed_at_its_call_and_in_the_users_range() -> None:
    """The copies take 3 us on the device, and block the CPU for 406 us in one range and 90 us in another."""
    finding = found(
        "synchronizing_calls",
        """
        main     |    0 1000 | ProfilerStep#0
        main     |   10   12 | cudaLaunchKernel | corr=1
        stream 7 |   20  420 | volta_sgemm | corr=1
        main     |   14  440 | ## wait_for_sizes ##
        main     |   20  426 | cudaMemcpyAsync | corr=2
        stream 7 |  421  422 | Memcpy DtoH (Device -> Pageable) | corr=2
        main     |  500  640 | ## log ##
        main     |  520  522 | cudaLaunchKernel | corr=3
        stream 7 |  525  600 | volta_sgemm | corr=3
        main     |  530  620 | cudaMemcpyAsync | corr=4
        stream 7 |  610  612 | Memcpy DtoH (Device -> Pageable) | corr=4
        main     |  900  902 | cudaLaunchKernel | corr=5
        stream 7 |  905  990 | volta_sgemm | corr=5
        """,
    )
    assert finding is not None
    assert finding.what.endswith("Mostly in wait_for_sizes.")
    (place,) = finding.evidence
    assert (place.name, place.count, place.ms) == ("cudaMemcpyAsync", 2, pytest.approx(0.496))


def test_a_short_copy_of_pinned_memory_that_ends_in_its_call_blocks_nothing() -> None:
    def copies(name: str, call: str) -> str:
        return "main | 0 1000 | ProfilerStep#0\n" + "\n".join(
            f"main | {at} {at + 10} | {call} | corr={at}\nstream 7 | {at + 2} {at + 8} | {name} | corr={at}"
            for at in range(10, 900, 20)
        )

    to_device, to_host = "Memcpy HtoD ({} -> Device)", "Memcpy DtoH (Device -> {})"
    for rule, name in (("pageable_copies", to_device), ("synchronizing_calls", to_host)):
        assert found(rule, copies(name.format("Pageable"), "cudaMemcpyAsync")) is not None
        assert found(rule, copies(name.format("Pinned"), "cudaMemcpyAsync")) is None
    assert found("synchronizing_calls", copies(to_host.format("Pinned"), "cudaMemcpy")) is not None


def test_waits_of_a_thread_that_saves_beside_the_loop_block_nothing() -> None:
    text = "main | 0 1000 | ProfilerStep#0\n" + "\n".join(
        f"main | {at} {at + 2} | cudaLaunchKernel | corr={at}\nstream 7 | {at + 2} {at + 99} | mm | corr={at}"
        for at in range(0, 900, 100)
    )
    saves = """
        {thread}   | 500 502 | cudaMemcpyAsync | corr=5000
        {thread}   | 510 900 | cudaStreamSynchronize
        stream 50  | 503 890 | Memcpy DtoH (Device -> Pinned) | corr=5000
    """
    assert found("synchronizing_calls", text + saves.format(thread="checkpoint")) is None
    assert found("synchronizing_calls", text + saves.format(thread="main")) is not None


def test_a_wait_after_all_launches_is_a_profiler_s_also_beside_work_of_unknown_launches() -> None:
    text = """
        main     |  10  12 | cudaLaunchKernel | corr=1
        stream 7 |  20 400 | gemm_a | corr=1
        stream 7 | 401 402 | gemm_unlinked
        main     | 500 504 | cudaLaunchKernel | corr=2
        stream 7 | 505 900 | gemm_a | corr=2
        main     | 510 910 | cudaDeviceSynchronize
        main     | 920 921 | aten::mm
    """
    assert found("synchronizing_calls", text) is None


def test_a_range_of_lines_tells_the_line_of_a_call() -> None:
    """As `stepscope batch` records them, for findings in the editor."""
    text = SYNCHRONISING + "main | 25 450 | stepscope.lines: train.py:40 | cat=cpu_op\n"
    finding = found("synchronizing_calls", text, devices=V100)
    assert finding is not None
    place = finding.evidence[0]
    assert (place.name, place.file, place.line) == ("aten::item", "train.py", 40)


def test_the_gain_of_loading_in_time_is_that_of_the_what_if_engine() -> None:
    finding = found("input_bound", WAITING_FOR_DATA.format(end=900, begin=910), devices=V100)
    assert finding is not None
    assert finding.gain.changes == ("dataloader",)
    assert finding.severity == "critical"


def test_a_hotspot_names_the_what_if_that_saves_as_much() -> None:
    finding = found("hotspot", SOFTMAX, devices=V100)
    assert finding is not None
    assert finding.gain.changes == ("scale:select=name=cunn_SoftMaxForward,factor=0.5",)
    assert finding.gain.ms == pytest.approx(0.150)


def test_a_gain_names_no_what_if_that_saves_another_time() -> None:
    context = RuleContext(annotate(drawn_trace(SOFTMAX, devices=V100)))
    half = context.gains.scaled(context.search.find("SoftMax", on_device=True), 0.5)
    assert half.ms == pytest.approx(0.150)
    of_all_kernels = "scale:select=category=kernel,factor=0.5"
    assert context.gains.reproduced(half, of_all_kernels).changes == ()
    assert context.gains.reproduced(half, "scale:select=name=cunn*,factor=0.5").changes != ()


def test_slow_launches_of_a_runtime_without_graphs_can_be_tried_too() -> None:
    text = lines("main | 0 1000 | ProfilerStep#0", launches(10, "fc-dtype_Float", 10, 5, 90))
    finding = found("cpu_latency", text.replace("cudaLaunchKernel", "runFunction"), devices=V100)
    assert finding is not None
    assert finding.gain.changes == ("cuda_graphs",)
    assert finding.gain.words == "what-if cuda_graphs, if it were launched as fast as by a graph"
    assert "CUDA graphs" not in finding.advice


def test_ranges_of_the_recorder_are_no_places_of_slow_launches() -> None:
    text = lines("main | 0 1000 | ProfilerStep#0", launches(10, "volta_gemm", 10, 5, 90))
    finding = found("cpu_latency", text + "\nmain | 1 999 | stepscope.lines: /train.py:3 | cat=cpu_op")
    assert finding is not None
    assert not [place.name for place in finding.evidence if place.name.startswith("stepscope")]


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "cudaStreamEndCapture"])
def test_a_program_that_replays_or_captures_graphs_is_not_advised_to_use_them(call: str) -> None:
    text = lines("main | 0 1000 | ProfilerStep#0", launches(10, "volta_gemm", 10, 5, 90))
    eager, replaying = (found("cpu_latency", text), found("cpu_latency", f"{text}\nmain | 990 995 | {call}"))
    assert eager is not None
    assert replaying is not None
    assert "reduce-overhead" in eager.advice
    assert "reduce-overhead" not in replaying.advice
    assert "more of the step in its CUDA graphs" in replaying.advice


@pytest.mark.parametrize(
    ("ends", "gain_ms"),
    [
        ([600], 0.399),  # the device waits from 200 to 598, and from 599 to 600
        ([600, 600, 600], 0.399),
        ([600, 220, 220], 0.019),  # 200 to 218, and 219 to 220: what one step waits longer does not recur
    ],
)
def test_a_copy_from_pageable_memory_costs_what_the_device_waits_for_its_call(
    ends: list[int], gain_ms: float
) -> None:
    steps = (
        f"""
        main     | {at}        {at + 1000} | ProfilerStep#{at // 1000}
        main     | {at + 10}   {at + 12}   | cudaLaunchKernel | corr={at + 1}
        stream 7 | {at + 20}   {at + 200}  | volta_fp16_s884gemm | corr={at + 1}
        main     | {at + 100}  {at + end}  | cudaMemcpyAsync | corr={at + 2}
        stream 7 | {at + end - 2} {at + end - 1} | Memcpy HtoD (Pageable -> Device) | corr={at + 2}
        main     | {at + 610}  {at + 612}  | cudaLaunchKernel | corr={at + 3}
        stream 7 | {at + 615}  {at + 990}  | volta_fp16_s884gemm | corr={at + 3}
        """
        for at, end in zip(range(0, 9000, 1000), ends, strict=False)
    )
    finding = found("pageable_copies", "".join(steps), devices=V100)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(gain_ms)


def test_a_thread_that_fetches_batches_blocks_no_step() -> None:
    """The loop does something else, while another thread copies the next batch."""
    text = """
        main     |   0 1000 | ProfilerStep#0
        main     |  10   12 | cudaLaunchKernel | corr=1
        stream 7 |  20  200 | volta_fp16_s884gemm | corr=1
        fetcher  | 100  600 | cudaMemcpyAsync | corr=2
        stream 8 | 598  599 | Memcpy HtoD (Pageable -> Device) | corr=2
        main     | 610  612 | cudaLaunchKernel | corr=3
        stream 7 | 615  990 | volta_fp16_s884gemm | corr=3
    """
    assert found("pageable_copies", text, devices=V100) is None


def test_a_launch_that_loads_its_kernel_is_no_overhead_of_a_small_batch() -> None:
    text = """
        main     |    0 5000 | ProfilerStep#0
        main     |   10 4900 | aten::linear | Input_Dims=[[1,512],[512,512]]
        main     |   20 4800 | cudaLaunchKernel | corr=1
        stream 7 | 4810 4990 | gemv_kernel | corr=1
    """
    assert found("small_batch", text, devices=V100) is None


def test_two_collectives_at_once_hide_nothing() -> None:
    finding = found(
        "exposed_communication",
        """
        main  |   0 1000 | ProfilerStep#0
        main  |  10  100 | aten::linear
        gloo1 | 200  600 | gloo:all_reduce | cat=communication
        gloo2 | 300  700 | gloo:all_reduce | cat=communication
        """,
    )
    assert finding is not None
    assert finding.what == "Communication is exposed for 0.5 ms of the step (50%)."


@pytest.mark.parametrize(("dtype", "halves"), [("Float", True), ("BFloat16", False), ("Half", False)])
def test_collectives_that_send_16_bits_need_not_send_fewer(dtype: str, halves: bool) -> None:
    finding = found("exposed_communication", f"{REDUCING.format(end=200).rstrip()} dtype={dtype}")
    assert finding is not None
    assert ("16 bits" in finding.advice) == halves
    assert finding.advice.startswith("Overlap collectives with")
    assert finding.advice.endswith(", and check whether one rank is late.")


def meeting(late: int, start: int = 0, end: int = 1000, step: int = 0) -> str:
    """A step of a rank that comes to its collective at `late`."""
    call, work = 2 * step + 1, 2 * step + 2
    return f"""
        main      | {start} {end} | ProfilerStep#{step}
        main      | {start + 10} {start + 12} | aten::mm
        main      | {start + 10} {start + 12} | cudaLaunchKernel | corr={call}
        stream 7  | {start + 20} {late} | volta_fp16_s884gemm | corr={call}
        main      | {start + 14} {start + 16} | cudaLaunchKernel | corr={work}
        stream 20 | {late + 1} {end - 10} | ncclDevKernel_AllReduce_Sum_f32 | corr={work}
    """


def stragglers(*ranks: str) -> list[str]:
    """What the rule says of a job of these ranks."""
    return [one.what for one in job_findings(*ranks) if one.rule == "straggling_rank"]


def job_findings(*ranks: str) -> list[Finding]:
    """The findings on a job of these ranks, the first one's."""
    traces = [of_rank(annotate(drawn_trace(text)), number) for number, text in enumerate(ranks)]
    return apply_rules(RuleContext(concat(traces), 0), RULES)


def test_a_rank_has_its_own_loop_and_capture() -> None:
    traces = [of_rank(annotate(drawn_trace(meeting(900 - 10 * rank))), rank) for rank in (0, 1)]
    joined = concat([trace.with_metadata(capture={"host": f"node{at}"}) for at, trace in enumerate(traces)])
    contexts = [RuleContext(joined, rank) for rank in (0, 1)]
    assert [joined["tracks"]["rank"][context.search.loop_track] for context in contexts] == [0, 1]
    assert [context.trace.metadata.capture["host"] for context in contexts] == ["node0", "node1"]


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_hotspot_of_all_ranks_is_tried_on_all_of_them(share: float) -> None:
    """What rank 1 runs takes `share` of the time that it takes on rank 0."""
    hot = """
        main | 0 1000 | ProfilerStep#1
        main | 0 10 | cudaLaunchKernel | corr=1
        stream 7 | 10 {end} | sort_kernel | corr=1
        main | 20 990 | cudaDeviceSynchronize
    """
    texts = [hot.format(end=10 + round(960 * one)) for one in (1.0, share)]
    (finding,) = [one for one in job_findings(*texts) if one.rule == "hotspot"]
    assert finding.gain.changes == ("scale:select=name=sort_kernel,factor=0.5",)
    assert 0 < finding.gain.ms <= 0.48 + 1e-9


@pytest.mark.parametrize(("lates", "slowest"), [([300, 900, 310], 1), ([600, 610, 605], None)])
def test_the_rank_that_the_others_wait_for(lates: list[int], slowest: int | None) -> None:
    said = stragglers(*map(meeting, lates))
    late = f"Rank {slowest}: forward 203% longer in every step. Mostly volta_fp16_s884gemm"
    assert [one.startswith(late) for one in said] == ([] if slowest is None else [True])


def test_a_straggler_comes_before_the_communication_that_waits_for_it() -> None:
    """Ranks 0 and 2 wait for 590 of 1,000 us; their collectives transfer for 89 us alone."""
    findings = job_findings(*map(meeting, [300, 900, 310]))
    gains = {one.rule: round(one.gain.ms, 2) for one in findings}
    assert [one.rule for one in findings][:2] == ["straggling_rank", "exposed_communication"]
    assert gains["straggling_rank"] == pytest.approx(0.6, abs=0.02)
    assert gains["exposed_communication"] <= 0.1


def test_a_rank_that_is_late_while_it_warms_up_is_no_straggler() -> None:
    later = lines(meeting(9300, 9000, 10000, 1), meeting(10300, 10000, 11000, 2))
    ranks = (lines(meeting(late, end=9000), later) for late in (300, 8900))
    assert stragglers(*ranks) == []


def test_a_wait_in_several_collectives_at_once_counts_once() -> None:
    """Two of DDP's buckets on two threads of Gloo: rank 0 waits from 110 to 800 us for both."""
    ranks = [
        f"""
        main   |   0 1000 | ProfilerStep#0
        main   |  10  {late} | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
        gloo 1 | {late} 900 | gloo:all_reduce
        gloo 2 | {late + 10} 910 | gloo:all_reduce
        """
        for late in (110, 800)
    ]
    (said,) = stragglers(*ranks)
    assert said.startswith("Rank 1: backward 627% longer in every step")


def test_a_compilation_inside_the_steps() -> None:
    text = """
        main | 0 1000 | ProfilerStep#0
        main | 10 800 | _compile.compile_inner (dynamo_timed) | cat=annotation
        main | 810 900 | aten::mm
    """
    finding = found("recompilation", text)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(0.79)
    assert finding.advice.startswith("If these steps are the first, record later ones")
    assert finding.severity == "warning"
    assert found("recompilation", text.replace("_compile.compile_inner (dynamo_timed)", "eval")) is None


@pytest.mark.parametrize(
    ("calls", "why", "advice"),
    [
        (("cudaMalloc", "cudaFree"), "cache of the allocator is emptied", "empty_cache()"),
        (("cudaHostAlloc", "cudaFreeHost"), "pinned memory of the host", "Pin buffers once"),
        (("cudaMallocAsync", "cudaFreeAsync"), "asks the driver each time", "backend:cudaMallocAsync"),
        (("cudaMalloc", "cudaMalloc"), "cannot keep enough", "expandable_segments"),
        (("cuMemCreate", "cuMemMap"), "cannot keep enough", ""),  # as these do
    ],
)
def test_the_calls_show_which_memory_each_step_allocates(
    calls: tuple[str, str], why: str, advice: str
) -> None:
    first, second = (f"{call} | cat=runtime" for call in calls)
    text = ALLOCATING.replace("100  400 | {call}", f"100  200 | {first}\n    main     |  210  400 | {second}")
    text = text.replace("1100 1400 | {call}", f"1100 1200 | {first}\n    main     | 1210 1400 | {second}")
    finding = found("allocator_churn", text, devices=A100)
    assert finding is not None
    assert why in finding.what
    assert advice in finding.advice
    assert ("expandable_segments" in finding.advice) == (advice == "expandable_segments")


def test_more_workers_than_cores_by_the_manifest() -> None:
    loaders = {"loaders": [{"workers": 16}], "cpus_usable": 6, "cpu_count": 64}
    text = WAITING_FOR_DATA.format(end=900, begin=910).replace("_Single", "_Multi")
    finding = found("too_many_workers", text, devices=V100, capture=loaders)
    assert finding is not None
    assert finding.what == "16 data-loader workers share 6 CPU cores."
    assert finding.gain.stated_ms == (0.0, finding.gain.ms)  # fewer workers need not end the waits
    few = {**loaders, "loaders": [{"workers": 6}]}
    assert found("too_many_workers", text, devices=V100, capture=few) is None
    assert found("too_many_workers", text, devices=V100) is None
