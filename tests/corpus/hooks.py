"""What is planted into a step: each function draws events where a step calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from builder import KERNELS, Builder
from case import planted
from steps import Model

Hook = Callable[[Builder, int], None]


def stall(*frames: str, us: float = 4000) -> Hook:
    return lambda b, step: b.python(us, *frames)


def python(frames: tuple[str, ...]) -> Callable[[Builder], None]:
    return planted(after=stall(*frames))


STALLS = {
    "sleep": (("train.py(40): main", "<built-in function sleep>"), r"sleep.*train\.py:40|sleep"),
    "logging": (("train.py(52): log_step", "logging/__init__.py(1500): info"), "log_step"),
    "metrics": (("train.py(60): compute_metrics",), r"compute_metrics"),
    "progress_bar": (("train.py(33): main", "tqdm/std.py(1325): update"), "tqdm"),
    "gc": (("train.py(71): main", "<built-in function collect>"), "collect"),
}


def item(b: Builder, step: int) -> None:
    with b.span("aten::item"), b.span("aten::_local_scalar_dense"):
        if b.on_device:
            b.copy(to_host(b), 2)
            b.wait()
        else:
            b.now += 2


def to_host(b: Builder) -> str:
    return "Memcpy DtoH (Device -> Pageable)" if b.flavor == "cuda" else "CopyDeviceToHost"


def to_device(b: Builder, pageable: bool = True) -> str:
    source = "Pageable" if pageable else "Pinned"
    return f"Memcpy HtoD ({source} -> Device)" if b.flavor == "cuda" else "CopyHostToDevice"


def items_on_cpu(b: Builder, step: int) -> None:
    for _ in range(60):
        item(b, step)
        b.now += 12


def to_cpu(b: Builder, step: int) -> None:
    with b.span("aten::to"), b.span("aten::copy_"):
        b.copy(to_host(b), 500, blocking=True)


def nonzero(b: Builder, step: int) -> None:
    with b.span("aten::nonzero"):
        b.launch("void cub::DeviceSelectSweepKernel", 10)
        b.wait()


def explicit(b: Builder, step: int) -> None:
    b.wait("hipDeviceSynchronize" if b.flavor == "rocm" else "cudaDeviceSynchronize")


def after_wait(hook: Hook, us: float) -> Hook:
    """What waits, and then Python, so that the device runs dry."""

    def run(b: Builder, step: int) -> None:
        hook(b, step)
        b.now += us

    return run


def pageable(b: Builder, step: int) -> None:
    with b.span("aten::to"), b.span("aten::copy_"):
        b.copy(to_device(b), 1500, blocking=True, volume=150_000_000)


def loading(*frames: str) -> Hook:
    def load(b: Builder, step: int) -> None:
        if frames:
            b.python(5000, *frames)
        else:
            b.now += 5000

    return load


def too_many_workers(b: Builder) -> dict[str, Any]:
    Model(load=loading()).run(b)
    return {"capture": {"cpus_usable": 4, "loaders": [{"workers": 16}]}}


def slow_launches(b: Builder, step: int) -> None:
    for _ in range(30):
        b.op("aten::index_select", 5, kernel="indexSelectSmallIndex", cpu=45)


def chain(count: int, us: float) -> Hook:
    def run(b: Builder, step: int) -> None:
        names = ("aten::mul", "aten::add", "aten::tanh", "aten::div")
        for number in range(count):
            b.op(names[number % 4], us, cpu=3)

    return run


def loop_update(name: str, count: int, us: float = 5) -> Hook:
    def run(b: Builder, step: int) -> None:
        for number in range(count):
            b.op(("aten::mul_", "aten::addcmul_", "aten::addcdiv_")[number % 3], us, cpu=12)

    return run


def foreach_update(b: Builder, step: int) -> None:
    for _ in range(40):
        with b.span("aten::_foreach_add_"):
            b.op("aten::_foreach_add_inner", 4, kernel="multi_tensor_apply_kernel<Binary>", cpu=25)


def small_batch(b: Builder) -> None:
    Model(layers=20, layer_us=8, cpu_us=45, shape=[[2, 512], [512, 512]]).run(b)


def attention(b: Builder, step: int) -> None:
    shape = [[32, 1024, 64], [32, 64, 1024]]
    b.op("aten::bmm", 250, "gemm", Input_Dims=shape)
    b.op("aten::mul", 200)
    b.op("aten::masked_fill", 200)
    b.op("aten::_softmax", 400, kernel="void cunn_SoftMaxForward<8, float>")
    b.op("aten::bmm", 250, "gemm", Input_Dims=[[32, 1024, 1024], [32, 1024, 64]])


def hot(operator: str, kernel: str, us: float = 3000) -> Hook:
    return lambda b, step: b.op(operator, us, kernel=kernel)


def layouts(b: Builder, step: int) -> None:
    kernel = "batched_transpose_16x32_half" if b.flavor == "rocm" else "cudnn::nchwToNhwcKernel"
    with b.span("aten::cudnn_convolution"):
        for _ in range(2):
            b.launch(kernel, 120)
        b.launch(KERNELS[b.flavor]["conv"], 300)


def layouts_on_cpu(b: Builder, step: int) -> None:
    dims = [[8, 64, 56, 56], [8, 64, 56, 56]]
    strides = [[200704, 3136, 56, 1], [200704, 1, 3584, 64]]
    b.op("aten::convolution", 400, Input_Dims=[[8, 64, 56, 56], [64, 64, 3, 3]])
    b.op("aten::copy_", 200, Input_Dims=dims, Input_Strides=strides)


def with_gradient(
    forward: str, node: str, forward_us: float, backward_us: float, kernel: str = ""
) -> Callable[[Builder], None]:
    """An operator after the loss's forward, and its gradient."""

    def build(b: Builder) -> None:
        sequence = [0]

        def ahead(b: Builder, step: int) -> None:
            sequence[0] = b.next_sequence()
            b.op(forward, forward_us, kernel=kernel, seq=sequence[0])

        def back(b: Builder, step: int) -> None:
            with (
                b.span(f"autograd::engine::evaluate_function: {node}", seq=sequence[0], fwd=1),
                b.span(node, seq=sequence[0], fwd=1),
            ):
                b.op("aten::_index_put_impl_", backward_us, kernel=kernel or "backward_kernel")

        Model(before=ahead, after_backward=back).run(b)

    return build


def zeroing(b: Builder, step: int) -> None:
    with b.span("Optimizer.zero_grad#AdamW.zero_grad"):
        for _ in range(40):
            b.op("aten::zero_", 12, cpu=12)


def compiling(b: Builder, step: int) -> None:
    begin = b.now
    b.now += 3000
    b.event(begin, b.now, "_compile.compile_inner (dynamo_timed)", cat="annotation")


def allocating(b: Builder, step: int) -> None:
    prefix = "hip" if b.flavor == "rocm" else "cuda"
    for call in ("Free", "Malloc"):
        b.wait()
        b.event(b.now, b.now + 900, f"{prefix}{call}")
        b.now += 901


def all_reduce(us: float, elements: int, stream: int = 20) -> Hook:
    def run(b: Builder, step: int) -> None:
        if us > 1000:  # after all computing, as without overlap
            b.free[stream] = max(b.free.values())
        end = b.launch(
            "ncclDevKernel_AllReduce_Sum_bf16_RING_LL",
            us,
            stream=stream,
            In_msg_nelems=elements,
            dtype="BFloat16",
        )
        b.free[7] = max(b.free.get(7, 0.0), end) if us > 1000 else b.free.get(7, 0.0)

    return run


def many_reduces(b: Builder, step: int) -> None:
    b.free[20] = max(b.free.values())
    for _ in range(40):
        all_reduce(60, 20_000, stream=20)(b, step)
    b.free[7] = max(b.free[7], b.free[20])


def unused(b: Builder, step: int) -> None:
    with (
        b.span("DistributedDataParallel.forward"),
        b.span("torch.distributed.ddp.reducer::search_unused_parameters"),
    ):
        b.now += 3500


def every(steps: int, hook: Hook) -> Hook:
    return lambda b, step: hook(b, step) if step % steps == 0 else None


def save(b: Builder, step: int) -> None:
    if b.on_device:
        b.wait()
    b.python(9000, "train.py(80): save_checkpoint", "torch/serialization.py(900): save")


def evaluate(b: Builder, step: int) -> None:
    begin, at = b.now, len(b.lines)
    for _ in range(8):
        b.op("aten::mm", 500, "gemm")
    b._line(b.thread, begin, b.now, "train.py(95): evaluate", {"cat": "python"}, at)
    b.now += 1


def skinny(b: Builder, step: int) -> None:
    for _ in range(6):
        b.op(
            "aten::mm",
            500,
            "gemm",
            Input_Dims=[[64, 1024], [1024, 1024]],
            Input_type=["c10::BFloat16", "c10::BFloat16"],
        )


def odd(b: Builder) -> None:
    kernel = "cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align1"
    Model(shape=[[4095, 1021], [1021, 1021]], kernel=kernel).run(b)


def bf16_on_cpu(b: Builder) -> None:
    Model(shape=[[512, 1024], [1024, 1024]], layer_us=200_000).run(b)  # 5 GFLOP/s


def naive_convolution(b: Builder) -> None:
    Model(kind="conv", kernel="naive_conv_ab_nonpacked_fwd_nchw_float").run(b)


def experts(b: Builder, step: int) -> None:
    """Experts one by one, with very different numbers of tokens."""
    for expert in range(16):
        tokens = 16 + 8 * expert + (1024 if expert == 3 else 0)
        b.op("aten::index", 3)
        b.op("aten::mm", 12, "gemm", cpu=25, Input_Dims=[[tokens, 512], [512, 512]])
        b.op("aten::index_add_", 3, kernel="indexFuncLargeIndex")


def grouped(b: Builder, step: int) -> None:
    """One product for all experts."""
    b.op("aten::_grouped_mm", 300, "gemm", Input_Dims=[[4096, 512], [16, 512, 512]])


def gathering(b: Builder, step: int, early: bool = False) -> None:
    """FSDP gathers a layer; if not early, once the layer before it has ended."""
    with b.span("FSDP::all_gather (layers.1)"):
        if not early:
            b.free[20] = max(b.free.values())
        end = b.launch("ncclDevKernel_AllGather_RING_LL", 250, stream=20)
        if not early:
            b.free[7] = end


def retrying(b: Builder, step: int) -> None:
    prefix = "hip" if b.flavor == "rocm" else "cuda"
    with b.span("aten::empty"):
        b.wait()
        for call in ("Free", "Free", "Malloc"):
            b.event(b.now, b.now + 900, f"{prefix}{call}")
            b.now += 901


def fp32(b: Builder) -> None:
    shape = [[1024, 1024], [1024, 2048]]  # half of the peak in FP32
    Model(shape=shape, dtype="float", kernel="ampere_sgemm_128x64_nn").run(b)
