"""Operations and bytes of XLA's instructions: from the shapes of their program, or as recorded."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from xspaces import Operation, Slice, encoded_shape, message, read_space, varint

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import Summary
from stepscope.facts.summary.report_facts import summarize
from stepscope.read.shared import WarningLog
from stepscope.read.xplane.hlo import buffers_of
from stepscope.read.xplane.protobuf import Span
from stepscope.read.xplane.xspace import XSpaceFile
from stepscope.trace.trace import Trace


def parameters(**shapes: str) -> dict[str, Operation]:
    return {
        name: Operation("parameter", shape=shape, fields=message((9, number)))
        for number, (name, shape) in enumerate(shapes.items())
    }


def packed(*numbers: int) -> bytes:
    return b"".join(varint(number) for number in numbers)


def executed(operations: dict[str, Operation], name: str) -> dict[str, Any]:
    """The arguments of an event that executes one of a program's operations."""
    stats = {"hlo_op": name, "hlo_module": "jit_step", "program_id": 1}
    trace = read_space({"/host:CPU": {"worker": [Slice(name, 0, 5, **stats)]}}, {"jit_step": operations})
    return trace.event_arguments(0)


def work(operations: dict[str, Operation], name: str) -> tuple[int | None, int | None]:
    """Operations and bytes of one execution."""
    found = executed(operations, name)
    return found.get("flops_from_shapes"), found.get("bytes_from_shapes")


DOT = message((30, message((1, packed(1)), (2, packed(0)))))


def test_a_fusion_computes_what_its_members_do_and_moves_operands_and_results() -> None:
    members = {
        **parameters(x="f32[64,128]", w="f32[128,32]"),
        "dot": Operation("dot", shape="f32[64,32]", operands=("x", "w"), fields=DOT),
        "twice": Operation("add", shape="f32[64,32]", operands=("dot", "dot")),
        "wave": Operation("tanh", shape="f32[64,32]", operands=("twice",)),
    }
    fusion = Operation("fusion", shape="f32[64,32]", operands=("x", "w"), members=members)
    found = executed({**parameters(x="f32[64,128]", w="f32[128,32]"), "f": fusion}, "f")
    product = 2 * 64 * 128 * 32
    assert found["product_flops_from_shapes"] == product
    assert found["flops_from_shapes"] == product + 64 * 32  # tanh counts none, as for XLA
    assert found["bytes_from_shapes"] == 4 * (64 * 128 + 128 * 32 + 64 * 32)
    assert (found["operand_bytes"], found["product_sizes"]) == (4, "64x128x32")


def test_what_a_fusion_slices_is_moved_in_part() -> None:
    members = {
        **parameters(stack="f32[12,64,32]", at="s32[]", x="f32[1,64,32]"),
        "layer": Operation("dynamic-slice", shape="f32[1,64,32]", operands=("stack", "at")),
        "sum": Operation("add", shape="f32[1,64,32]", operands=("layer", "x")),
    }
    outer = parameters(stack="f32[12,64,32]", at="s32[]", x="f32[1,64,32]")
    fusion = Operation("fusion", shape="f32[1,64,32]", operands=tuple(outer), members=members)
    assert work({**outer, "f": fusion}, "f") == (64 * 32, 3 * 4 * 64 * 32 + 4)


def test_what_is_updated_in_place_is_moved_in_part() -> None:
    members = {
        **parameters(stack="f32[12,64]", x="f32[1,64]", at="s32[]"),
        "new": Operation("dynamic-update-slice", shape="f32[12,64]", operands=("stack", "x", "at")),
    }
    outer = parameters(stack="f32[12,64]", x="f32[1,64]", at="s32[]")
    fusion = Operation("fusion", shape="f32[12,64]", operands=tuple(outer), members=members)
    assert work({**outer, "f": fusion}, "f") == (0, 2 * 4 * 64 + 4)


def test_a_reduction_applies_its_computation_once_for_each_element_but_the_results() -> None:
    maximum = {
        **parameters(a="f32[]", b="f32[]"),
        "m": Operation("maximum", shape="f32[]", operands=("a", "b")),
    }
    reduce = Operation("reduce", shape="f32[64]", operands=("x", "zero"), members=maximum)
    program = {**parameters(x="f32[64,128]", zero="f32[]"), "r": reduce}
    assert work(program, "r") == (64 * 128 - 64, 4 * (64 * 128 + 1 + 64))


def test_what_runs_other_instructions_has_no_work_of_its_own() -> None:
    body = {**parameters(x="f32[64]"), "y": Operation("negate", shape="f32[64]", operands=("x",))}
    loop = Operation("while", shape="f32[64]", operands=("x",), members=body)
    assert work({**parameters(x="f32[64]"), "loop": loop}, "loop") == (None, None)


# -- libraries


def call(target: str, result: str, settings: dict[str, Any], *fields: Any, **operands: str) -> Any:
    """Operations of a library's call with these operands, and its kind."""
    encoded = message((28, target), (43, json.dumps(settings)), *fields)
    one = Operation("custom-call", shape=result, operands=tuple(operands), fields=encoded)
    program = {**parameters(**operands), "call": one}
    stats = {"hlo_op": "call", "hlo_module": "jit_step", "program_id": 1}
    trace = annotate(
        read_space({"/host:CPU": {"worker": [Slice("call", 0, 5, **stats)]}}, {"jit_step": program})
    )
    return trace.event_arguments(0).get("flops_from_shapes"), trace.events.text("kind")[0]


CONTRACTED = {"lhs_contracting_dimensions": ["1"], "rhs_contracting_dimensions": ["0"]}


@pytest.mark.parametrize(
    ("target", "settings"),
    [
        ("__cublas$gemm", {"gemm_backend_config": {"dot_dimension_numbers": CONTRACTED}}),
        ("__cublas$lt$matmul", {"dot_dimension_numbers": CONTRACTED}),
        ("__onednn$matmul", {}),
    ],
)
def test_a_library_s_product(target: str, settings: dict[str, Any]) -> None:
    result = "(f32[64,32], s8[4194304])"  # with space to work in
    found = call(target, result, settings, x="f32[64,128]", w="f32[128,32]")
    assert found == (2 * 64 * 128 * 32, "gemm")


def test_a_library_s_product_of_a_batch_without_its_dimensions() -> None:
    found = call("__onednn$matmul", "f32[8,64,32]", {}, x="f32[8,64,128]", w="f32[8,128,32]")
    assert found == (2 * 8 * 64 * 128 * 32, "gemm")


# NCHW, OIHW; both spatial dimensions are a window of 3 with a stride of 2 and a padding of 1.
LAYOUT = message(
    (7, 0), (8, 1), (11, packed(2, 3)), (3, 1), (4, 0), (6, packed(2, 3)), (9, 0), (10, 1), (12, packed(2, 3))
)
DIMENSION = message((1, 3), (2, 2), (3, 1), (4, 1), (5, 1), (6, 1))
CONVOLUTION = ((15, message((1, DIMENSION), (1, DIMENSION))), (16, LAYOUT))
IMAGE, FILTERS, OUTPUT = "bf16[2,8,16,16]", "bf16[32,8,3,3]", "bf16[2,32,8,8]"
MEETINGS = 8 * 3 - 1  # of 8 outputs with 3 filter elements, all but one meet the image


@pytest.mark.parametrize(
    ("target", "result", "operands"),
    [
        ("__cudnn$convForward", OUTPUT, {"x": IMAGE, "w": FILTERS}),
        ("__cudnn$convBackwardInput", IMAGE, {"g": OUTPUT, "w": FILTERS}),
        ("__cudnn$convBackwardFilter", FILTERS, {"x": IMAGE, "g": OUTPUT}),
    ],
)
def test_a_library_s_convolution_and_its_gradients(
    target: str, result: str, operands: dict[str, str]
) -> None:
    found = call(target, f"({result}, u8[1024])", {}, *CONVOLUTION, **operands)
    assert found == (2 * 2 * 8 * 32 * MEETINGS**2, "convolution")


@pytest.mark.parametrize(("mask", "part"), [("NO_MASK", 1), ("CAUSAL", 0.5)])
@pytest.mark.parametrize(("suffix", "products"), [("", 2), ("Backward", 5)])
def test_a_library_s_attention(mask: str, part: float, suffix: str, products: int) -> None:
    """Of 2 sequences of 256 with 4 heads of 64, keys and values of 512."""
    scores = {"intermediate_tensor_shape": {"dimensions": ["2", "4", "256", "512"]}}
    settings = {"cudnn_fmha_backend_config": {**scores, "mask_type": mask}}
    query, keys = "bf16[2,256,4,64]", "bf16[2,512,4,64]"
    target = f"__cudnn$fmhaSoftmax{suffix}"
    found = call(target, f"({query}, f32[8,256])", settings, q=query, k=keys, v=keys)
    assert found == (products * 2 * 2 * 4 * 256 * 512 * 64 * part, "attention")


def test_a_pallas_kernel_says_what_it_costs() -> None:
    settings = {"custom_call_config": {"cost_estimate": {"flops": "123", "bytes_accessed": 45}}}
    found = call("tpu_custom_call", "f32[8]", settings, x="f32[8]")
    assert found == (123, "other")


@pytest.mark.parametrize(
    "settings",
    [
        [],
        {"dot_dimension_numbers": {"lhs_contracting_dimensions": ["9", "x"]}},
        {"cost_estimate": {"flops": "many"}},
        *({"cost_estimate": {"flops": flops}} for flops in (10**400, 1e999, "inf")),
        {"intermediate_tensor_shape": {"dimensions": ["9" * 400] * 4}},
    ],
)
def test_settings_that_make_no_sense(settings: Any) -> None:
    target = "__cudnn$fmhaSoftmax"
    assert call(target, "f32[8]", settings, x="f32[8]", y="f32[8]", z="f32[8]")[0] is None


def test_views_of_views_cost_no_more_than_the_program() -> None:
    """Each takes the one before twice."""
    names = ["x", *(f"view{at}" for at in range(64))]
    views = {
        name: Operation("bitcast", shape="f32[8]", operands=(above, above)) for above, name in pairwise(names)
    }
    wave = Operation("tanh", shape="f32[8]", operands=(names[-1],))
    members = parameters(x="f32[8]") | views | {"wave": wave}
    fusion = Operation("fusion", shape="f32[8]", operands=("x",), members=members)
    assert work({**parameters(x="f32[8]"), "f": fusion}, "f") == (0, 64)


def test_a_window_of_absurd_size_is_unknown_work() -> None:
    window = message((15, message(*[(1, message((1, 1 << 60)))] * 30)))
    members = parameters(a="f32[]", b="f32[]") | {"sum": Operation("add", shape="f32[]", operands=("a", "b"))}
    pooled = Operation("reduce-window", shape="f32[8]", operands=("x", "y"), fields=window, members=members)
    assert work({**parameters(x="f32[8]", y="f32[]"), "pool": pooled}, "pool") == (None, 68)


def test_a_shape_of_absurd_size_is_damage() -> None:
    huge = "f32[" + ",".join(["4294967295"] * 40) + "]"
    program = {**parameters(x=huge), "n": Operation("negate", shape=huge, operands=("x",))}
    stats = {"hlo_op": "n", "hlo_module": "jit_step", "program_id": 1}
    trace = read_space({"/host:CPU": {"worker": [Slice("n", 0, 5, **stats)]}}, {"jit_step": program})
    assert [row["code"] for row in trace["warnings"].rows()] == ["damaged_message"]


# -- in a report


PRODUCT = {
    **parameters(x="bf16[4096,4096]", w="bf16[4096,4096]"),
    "dot.1": Operation(
        "dot", "jit(step)/jvp(Net)/dot_general", shape="bf16[4096,4096]", operands=("x", "w"), fields=DOT
    ),
    "copy.1": Operation("copy", shape="bf16[4096,4096]", operands=("x",)),
}
ONCE = 2 * 4096**3
OF_DOT = {"hlo_op": "dot.1", "hlo_module": "jit_step", "program_id": 1}


def summary(device: str, lines: dict[str, list[Slice]], host: list[Slice], **stats: Any) -> Summary:
    marks = [Slice("train", 0, 1000, step_num=0), *host]
    planes = {"/host:CPU": {"python": marks}, device: lines}
    trace = annotate(read_space(planes, {"jit_step": PRODUCT}))
    return summarize(trace.with_metadata(devices=({"id": 0, **stats},)))


def on_gpu(*names: str) -> Summary:
    """Kernels of one instruction, each with a launch of its own, then a copy."""
    stats = [{**OF_DOT, "correlation_id": number} for number, _ in enumerate(names)]
    launches = [Slice("cuLaunchKernel", 10 + number, 1, **one) for number, one in enumerate(stats)]
    kernels = [
        Slice(name, 100 + 200 * number, 200, **one)
        for number, (name, one) in enumerate(zip(names, stats, strict=True))
    ]
    copy = {**OF_DOT, "hlo_op": "copy.1", "correlation_id": 99}
    launches.append(Slice("cuLaunchKernel", 50, 1, **copy))
    kernels.append(Slice("loop_copy", 700, 40, **copy))
    name = "NVIDIA H100 80GB HBM3"
    return summary("/device:GPU:0", {"Stream #7": kernels}, launches, name=name)


def test_a_gpu_s_share_of_its_peak() -> None:
    found = on_gpu("sm90_xmma_gemm")
    assert found.efficiency is not None
    assert found.efficiency.flops == ONCE
    assert found.efficiency.mfu == pytest.approx(ONCE / 1e-3 / 989.4e12)
    assert found.efficiency.busy_utilization == pytest.approx(ONCE / 200e-6 / 989.4e12)
    kernels = {kernel.name: kernel for kernel in found.kernels}
    assert kernels["sm90_xmma_gemm"].intensity == pytest.approx(ONCE / (3 * 2 * 4096**2))
    assert kernels["loop_copy"].of_peak == pytest.approx(2 * 2 * 4096**2 / 3350e9 / 40e-6)
    assert kernels["loop_copy"].limit == "memory"


def test_kernels_of_one_instruction_share_its_work() -> None:
    found = on_gpu("split_k_part", "split_k_sum")
    assert found.efficiency is not None
    assert found.efficiency.flops == ONCE
    assert {kernel.kind for kernel in found.kernels} == {"gemm", "elementwise"}


def test_what_xla_recorded_takes_precedence() -> None:
    """A TPU's events name their program, and XLA's own counts."""
    own = {"program_id": 1, "flops": 1000, "bytes_accessed": 500}
    lines = {
        "XLA Modules": [Slice("jit_step(1)", 100, 300, run_id=88)],
        "XLA Ops": [Slice("dot.1", 100, 200, **own)],
    }
    found = summary("/device:TPU:0", lines, [Slice("TpuExecutable", 5, 9, run_id=88)], name="TPU")
    assert found.efficiency is not None
    assert (found.efficiency.flops, found.efficiency.counted_by) == (1000, "xla")
    assert [(kernel.kind, kernel.intensity) for kernel in found.kernels] == [("gemm", 2)]


def test_each_run_of_a_loop_s_body_counts() -> None:
    """One call starts everything on a TPU; the same instruction runs again and again."""
    runs = [Slice("dot.1", 100 + 50 * number, 40, program_id=1) for number in range(3)]
    lines = {"XLA Modules": [Slice("jit_step(1)", 100, 300, run_id=88)], "XLA Ops": runs}
    found = summary("/device:TPU:0", lines, [Slice("TpuExecutable", 5, 9, run_id=88)], name="TPU")
    assert found.efficiency is not None
    assert (found.efficiency.flops, found.efficiency.counted_by) == (3 * ONCE, "shapes")


def test_a_name_that_promises_a_product_is_overruled_by_the_program() -> None:
    """A transposition that XLA names after the product that it prepares."""
    program = {
        **parameters(x="f32[64,64]"),
        "t": Operation("transpose", "jit(step)/dot_general", shape="f32[64,64]", operands=("x",)),
    }
    stats = {"hlo_op": "t", "hlo_module": "jit_step", "program_id": 1}
    trace: Trace = annotate(
        read_space({"/host:CPU": {"worker": [Slice("t", 0, 5, **stats)]}}, {"jit_step": program})
    )
    assert trace.events.text("kind")[0] == "elementwise"


# -- arguments and results


def test_arguments_that_could_be_donated() -> None:
    """Two of the three weights come back; one of them takes over its argument's memory."""
    weights, batch, loss = (encoded_shape(text) for text in ("f32[64,64]", "f32[8,64]", "f32[]"))
    result = message((2, 13), (4, weights), (4, weights), (4, loss))
    shape = message((1, weights), (1, weights), (1, weights), (1, batch), (2, result))
    donated = message((1, message((1, packed(1)), (2, 0))))
    data = message((4, shape), (8, donated))
    found = buffers_of(XSpaceFile(data, WarningLog()), Span(0, len(data)))
    size = 4 * 64 * 64
    assert found == {
        "argument_bytes": 3 * size + 4 * 8 * 64,
        "donated_bytes": size,
        "could_donate_bytes": size,
    }
