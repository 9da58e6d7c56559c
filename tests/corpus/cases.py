"""The corpus: traces with one planted defect each, and clean ones, with their truth.

A case names the rule that must report it and a pattern that its finding must show: the cause, and
the place where the trace has one. A clean case must have no warning and no critical finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax_steps
from builder import KERNELS, Builder
from jax_steps import JaxStep
from steps import Model

from stepscope.trace.trace import Trace

DEVICES = ("cuda", "rocm")
ALL = ("cuda", "rocm", "cpu")


@dataclass(frozen=True)
class Case:
    """A trace and its truth.

    Attributes:
        kind: what was planted, or which clean step it is.
        flavor: `cuda`, `rocm`, `cpu` or `jax`.
        build: draws the trace.
        rules: any of these must report it; none for a clean step.
        shows: a pattern in the finding's sentences or evidence.
    """

    kind: str
    flavor: str
    build: Callable[[Builder], dict[str, Any] | None]
    rules: tuple[str, ...] = ()
    shows: str = ""

    @property
    def name(self) -> str:
        """The name of the case."""
        return f"{self.kind}-{self.flavor}"

    def trace(self, seed: int = 0) -> Trace:
        """The trace, drawn."""
        builder = Builder(self.flavor, seed)
        return builder.trace(**(self.build(builder) or {}))


def _planted(**changes: Any) -> Callable[[Builder], None]:
    def build(b: Builder) -> None:
        Model(**changes).run(b)

    return build


# -- Python


def _stall(*frames: str, us: float = 4000) -> Callable[[Builder, int], None]:
    return lambda b, step: b.python(us, *frames)


def _python(frames: tuple[str, ...]) -> Callable[[Builder], None]:
    return _planted(after=_stall(*frames))


STALLS = {
    "sleep": (("train.py(40): main", "<built-in function sleep>"), r"sleep.*train\.py:40|sleep"),
    "logging": (("train.py(52): log_step", "logging/__init__.py(1500): info"), "log_step"),
    "metrics": (("train.py(60): compute_metrics",), r"compute_metrics"),
    "progress_bar": (("train.py(33): main", "tqdm/std.py(1325): update"), "tqdm"),
    "gc": (("train.py(71): main", "<built-in function collect>"), "collect"),
}

# -- synchronization


def _item(b: Builder, step: int) -> None:
    with b.span("aten::item"), b.span("aten::_local_scalar_dense"):
        if b.on_device:
            b.copy(_to_host(b), 2)
            b.wait()
        else:
            b.now += 2


def _to_host(b: Builder) -> str:
    return "Memcpy DtoH (Device -> Pageable)" if b.flavor == "cuda" else "CopyDeviceToHost"


def _to_device(b: Builder, pageable: bool = True) -> str:
    source = "Pageable" if pageable else "Pinned"
    return f"Memcpy HtoD ({source} -> Device)" if b.flavor == "cuda" else "CopyHostToDevice"


def _items_on_cpu(b: Builder, step: int) -> None:
    for _ in range(60):
        _item(b, step)
        b.now += 12


def _to_cpu(b: Builder, step: int) -> None:
    with b.span("aten::to"), b.span("aten::copy_"):
        b.copy(_to_host(b), 500, blocking=True)


def _nonzero(b: Builder, step: int) -> None:
    with b.span("aten::nonzero"):
        b.launch("void cub::DeviceSelectSweepKernel", 10)
        b.wait()


def _explicit(b: Builder, step: int) -> None:
    b.wait("hipDeviceSynchronize" if b.flavor == "rocm" else "cudaDeviceSynchronize")


def _after_wait(hook: Callable[[Builder, int], None], us: float) -> Callable[[Builder, int], None]:
    """What waits, and then Python, so that the device runs dry."""

    def run(b: Builder, step: int) -> None:
        hook(b, step)
        b.now += us

    return run


def _pageable(b: Builder, step: int) -> None:
    with b.span("aten::to"), b.span("aten::copy_"):
        b.copy(_to_device(b), 1500, blocking=True, volume=150_000_000)


# -- data


def _loading(*frames: str) -> Callable[[Builder, int], None]:
    def load(b: Builder, step: int) -> None:
        if frames:
            b.python(5000, *frames)
        else:
            b.now += 5000

    return load


def _too_many_workers(b: Builder) -> dict[str, Any]:
    Model(load=_loading()).run(b)
    return {"capture": {"cpus_usable": 4, "loaders": [{"workers": 16}]}}


# -- launches and elementwise work


def _slow_launches(b: Builder, step: int) -> None:
    for _ in range(30):
        b.op("aten::index_select", 5, kernel="indexSelectSmallIndex", cpu=45)


def _chain(count: int, us: float) -> Callable[[Builder, int], None]:
    def run(b: Builder, step: int) -> None:
        names = ("aten::mul", "aten::add", "aten::tanh", "aten::div")
        for number in range(count):
            b.op(names[number % 4], us, cpu=3)

    return run


def _loop_update(name: str, count: int, us: float = 5) -> Callable[[Builder, int], None]:
    def run(b: Builder, step: int) -> None:
        for number in range(count):
            b.op(("aten::mul_", "aten::addcmul_", "aten::addcdiv_")[number % 3], us, cpu=12)

    return run


def _foreach_update(b: Builder, step: int) -> None:
    for _ in range(40):
        with b.span("aten::_foreach_add_"):
            b.op("aten::_foreach_add_inner", 4, kernel="multi_tensor_apply_kernel<Binary>", cpu=25)


def _small_batch(b: Builder) -> None:
    Model(layers=20, layer_us=8, cpu_us=45, shape=[[2, 512], [512, 512]]).run(b)


# -- work on the device


def _attention(b: Builder, step: int) -> None:
    shape = [[32, 1024, 64], [32, 64, 1024]]
    b.op("aten::bmm", 250, "gemm", Input_Dims=shape)
    b.op("aten::mul", 200)
    b.op("aten::masked_fill", 200)
    b.op("aten::_softmax", 400, kernel="void cunn_SoftMaxForward<8, float>")
    b.op("aten::bmm", 250, "gemm", Input_Dims=[[32, 1024, 1024], [32, 1024, 64]])


def _hot(operator: str, kernel: str, us: float = 3000) -> Callable[[Builder, int], None]:
    return lambda b, step: b.op(operator, us, kernel=kernel)


def _layouts(b: Builder, step: int) -> None:
    kernel = "batched_transpose_16x32_half" if b.flavor == "rocm" else "cudnn::nchwToNhwcKernel"
    with b.span("aten::cudnn_convolution"):
        for _ in range(2):
            b.launch(kernel, 120)
        b.launch(KERNELS[b.flavor]["conv"], 300)


def _layouts_on_cpu(b: Builder, step: int) -> None:
    dims = [[8, 64, 56, 56], [8, 64, 56, 56]]
    strides = [[200704, 3136, 56, 1], [200704, 1, 3584, 64]]
    b.op("aten::convolution", 400, Input_Dims=[[8, 64, 56, 56], [64, 64, 3, 3]])
    b.op("aten::copy_", 200, Input_Dims=dims, Input_Strides=strides)


def _with_gradient(
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


def _zeroing(b: Builder, step: int) -> None:
    with b.span("Optimizer.zero_grad#AdamW.zero_grad"):
        for _ in range(40):
            b.op("aten::zero_", 12, cpu=12)


def _compiling(b: Builder, step: int) -> None:
    begin = b.now
    b.now += 3000
    b.event(begin, b.now, "_compile.compile_inner (dynamo_timed)", cat="annotation")


def _allocating(b: Builder, step: int) -> None:
    prefix = "hip" if b.flavor == "rocm" else "cuda"
    for call in ("Free", "Malloc"):
        b.wait()
        b.event(b.now, b.now + 900, f"{prefix}{call}")
        b.now += 901


# -- several ranks


def _all_reduce(us: float, elements: int, stream: int = 20) -> Callable[[Builder, int], None]:
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


def _many_reduces(b: Builder, step: int) -> None:
    b.free[20] = max(b.free.values())
    for _ in range(40):
        _all_reduce(60, 20_000, stream=20)(b, step)
    b.free[7] = max(b.free[7], b.free[20])


def _unused(b: Builder, step: int) -> None:
    with (
        b.span("DistributedDataParallel.forward"),
        b.span("torch.distributed.ddp.reducer::search_unused_parameters"),
    ):
        b.now += 3500


def _every(steps: int, hook: Callable[[Builder, int], None]) -> Callable[[Builder, int], None]:
    return lambda b, step: hook(b, step) if step % steps == 0 else None


def _save(b: Builder, step: int) -> None:
    if b.on_device:
        b.wait()
    b.python(9000, "train.py(80): save_checkpoint", "torch/serialization.py(900): save")


def _evaluate(b: Builder, step: int) -> None:
    begin, at = b.now, len(b.lines)
    for _ in range(8):
        b.op("aten::mm", 500, "gemm")
    b._line(b.thread, begin, b.now, "train.py(95): evaluate", {"cat": "python"}, at)
    b.now += 1


def _skinny(b: Builder, step: int) -> None:
    for _ in range(6):
        b.op(
            "aten::mm",
            500,
            "gemm",
            Input_Dims=[[64, 1024], [1024, 1024]],
            Input_type=["c10::BFloat16", "c10::BFloat16"],
        )


def _odd(b: Builder) -> None:
    kernel = "cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_32x6_tn_align1"
    Model(shape=[[4095, 1021], [1021, 1021]], kernel=kernel).run(b)


def _experts(b: Builder, step: int) -> None:
    """Experts one by one, with very different numbers of tokens."""
    for expert in range(16):
        tokens = 16 + 8 * expert + (1024 if expert == 3 else 0)
        b.op("aten::index", 3)
        b.op("aten::mm", 12, "gemm", cpu=25, Input_Dims=[[tokens, 512], [512, 512]])
        b.op("aten::index_add_", 3, kernel="indexFuncLargeIndex")


def _grouped(b: Builder, step: int) -> None:
    """One product for all experts."""
    b.op("aten::_grouped_mm", 300, "gemm", Input_Dims=[[4096, 512], [16, 512, 512]])


def _gathering(b: Builder, step: int, early: bool = False) -> None:
    """FSDP gathers a layer; if not early, once the layer before it has ended."""
    with b.span("FSDP::all_gather (layers.1)"):
        if not early:
            b.free[20] = max(b.free.values())
        end = b.launch("ncclDevKernel_AllGather_RING_LL", 250, stream=20)
        if not early:
            b.free[7] = end


def _retrying(b: Builder, step: int) -> None:
    prefix = "hip" if b.flavor == "rocm" else "cuda"
    with b.span("aten::empty"):
        b.wait()
        for call in ("Free", "Free", "Malloc"):
            b.event(b.now, b.now + 900, f"{prefix}{call}")
            b.now += 901


def _fp32(b: Builder) -> None:
    shape = [[1024, 1024], [1024, 2048]]  # half of the peak in FP32
    Model(shape=shape, dtype="float", kernel="ampere_sgemm_128x64_nn").run(b)


def _on(
    flavors: tuple[str, ...],
    kind: str,
    build: Callable[[Builder], Any],
    rules: str | tuple[str, ...] = (),
    shows: str = "",
) -> Iterator[Case]:
    names = (rules,) if isinstance(rules, str) else rules
    for flavor in flavors:
        yield Case(kind, flavor, build, names, shows)


def _defects() -> Iterator[Case]:
    for kind, (frames, shows) in STALLS.items():
        yield from _on(DEVICES, kind, _python(frames), "python_stall", shows)
    for kind in ("logging", "metrics", "sleep"):
        frames, shows = STALLS[kind]
        yield from _on(("cpu",), kind, _python(frames), "cpu_latency", shows)
    sync = "synchronizing_calls"
    yield from _on(DEVICES, "item", _planted(in_layer=_after_wait(_item, 150)), sync, r"\.item\(\)")
    yield from _on(("cpu",), "item", _planted(after_forward=_items_on_cpu), sync, r"\.item\(\)")
    yield from _on(DEVICES, "cpu_copy", _planted(in_layer=_after_wait(_to_cpu, 150)), sync, "cpu")
    yield from _on(DEVICES, "nonzero", _planted(in_layer=_after_wait(_nonzero, 150)), sync, "nonz")
    yield from _on(
        DEVICES, "synchronize", _planted(in_layer=_after_wait(_explicit, 150)), sync, "explicit"
    )
    yield from _on(DEVICES, "pageable", _planted(before=_pageable), "pageable_copies", "block")
    yield from _on(ALL, "loading", _planted(load=_loading()), "input_bound", "batch")
    for part, frame in {
        "decoding": "PIL/Image.py(3000): open",
        "collating": "torch/utils/data/_utils/collate.py(100): default_collate",
        "augmenting": "torchvision/transforms/functional.py(300): resize",
    }.items():
        frames = ("data.py(20): __getitem__", frame)
        yield from _on(("cuda", "cpu"), part, _planted(load=_loading(*frames)), "input_bound", part)
    yield from _on(("cuda", "cpu"), "workers", _too_many_workers, "too_many_workers", "16.* 4 CPU")
    yield from _on(
        DEVICES, "slow_launches", _planted(in_layer=_slow_launches), "cpu_latency", "forward"
    )
    yield from _on(
        ("cuda", "cpu"),
        "small_chain",
        _planted(in_layer=_chain(60, 6)),
        "kernel_fusion",
        "small elementwise",
    )
    yield from _on(ALL, "large_chain", _planted(in_layer=_chain(8, 150)), "kernel_fusion", "Chains")
    for name in ("AdamW", "SGD"):
        yield from _on(
            DEVICES,
            f"{name}_loop",
            _planted(optimizer=name, layer_us=60.0, update=_loop_update(name, 240)),
            "optimizer_loop",
            rf"torch\.optim\.{name}\(\.\.\., fused=True\)",
        )
    yield from _on(
        ("cpu",),
        "AdamW_loop",
        _planted(optimizer="AdamW", update=_loop_update("AdamW", 240)),
        "optimizer_loop",
        "fused=True",
    )
    yield from _on(
        DEVICES,
        "RMSprop_loop",
        _planted(optimizer="RMSprop", layer_us=60.0, update=_loop_update("RMSprop", 240)),
        "optimizer_loop",
        "foreach=True",
    )
    yield from _on(
        ("cuda",),
        "Adam_foreach",
        _planted(optimizer="Adam", layer_us=60.0, update=_foreach_update),
        "optimizer_loop",
        "fused=True",
    )
    yield from _on(("cuda", "cpu"), "small_batch", _small_batch, ("small_batch",), "2 rows")
    yield from _on(
        ALL,
        "attention",
        _planted(in_layer=_attention),
        "unfused_attention",
        "scaled_dot_product_attention",
    )
    yield from _on(
        ALL,
        "sort",
        _planted(after_forward=_hot("aten::sort", "radixSortKVInPlace")),
        "hotspot",
        "(?i)sort",
    )
    yield from _on(
        DEVICES,
        "cumsum",
        _planted(after_forward=_hot("aten::cumsum", "tensor_kernel_scan_innermost_dim")),
        "hotspot",
        "triangular",
    )
    yield from _on(
        DEVICES,
        "layouts",
        _planted(kind="conv", in_layer=_layouts),
        "layout_conversions",
        "channels_last",
    )
    yield from _on(
        ("cpu",),
        "layouts",
        _planted(kind="conv", in_layer=_layouts_on_cpu),
        "layout_conversions",
        "channels_last",
    )
    yield from _on(
        ALL,
        "index_backward",
        _with_gradient("aten::index", "IndexBackward0", 40, 2500),
        "index_backward",
        "index_select",
    )
    yield from _on(
        ALL,
        "embedding",
        _with_gradient("aten::embedding", "EmbeddingBackward0", 30, 2500),
        "forward_backward",
        "sparse=True",
    )
    yield from _on(
        ("cuda", "cpu"),
        "slices",
        _with_gradient("aten::slice", "SliceBackward0", 1, 2500),
        "forward_backward",
        "all parts at once",
    )
    yield from _on(
        ALL, "zeroing", _planted(after_backward=_zeroing), "zero_grad_memset", "set_to_none"
    )
    yield from _on(
        ("cuda", "cpu"),
        "recompiling",
        _planted(before=_compiling),
        "recompilation",
        "compiles once per step",
    )
    yield from _on(DEVICES, "allocating", _planted(before=_allocating), "allocator_churn", "memory")
    yield from _on(
        DEVICES,
        "exposed",
        _planted(after_backward=_all_reduce(4000, 80_000_000)),
        "exposed_communication",
        "exposed",
    )
    yield from _on(
        DEVICES,
        "small_buckets",
        _planted(after_backward=_many_reduces),
        "small_buckets",
        "bucket_cap_mb",
    )
    yield from _on(
        DEVICES,
        "unused_parameters",
        _planted(before=_unused),
        "ddp_unused_parameters",
        "find_unused_parameters=False",
    )
    yield from _on(
        ALL, "checkpoint", _planted(after=_every(3, _save)), "checkpoint_in_loop", r"train\.py:80"
    )
    yield from _on(
        ALL,
        "evaluation",
        _planted(after=_every(2, _evaluate)),
        "frequent_evaluation",
        r"train\.py:95",
    )
    yield from _on(
        DEVICES, "skinny", _planted(in_layer=_skinny), "low_utilization", "aten|gemm|Cij"
    )
    yield from _on(("cuda",), "odd_shapes", _odd, ("odd_shapes", "low_utilization"), "multiple")
    yield from _on(("cuda",), "fp32", _fp32, "fp32_matmul", "FP32")
    yield from _on(
        ALL, "experts", _planted(in_layer=_experts), "expert_loop", r"one after the other.*busiest"
    )
    for stage, hook in {"forward": "in_layer", "backward": "in_backward_layer"}.items():
        yield from _on(
            DEVICES,
            f"fsdp_{stage}",
            _planted(**{hook: _gathering}),
            "fsdp_prefetch",
            f"set_modules_to_{stage}_prefetch",
        )
    yield from _on(
        DEVICES, "retrying", _planted(before=_retrying), "allocator_churn", "ran out of memory"
    )
    yield from _jax_defects()


def _jax(**changes: Any) -> Callable[[Builder], None]:
    return lambda b: JaxStep(**changes).run(b)


def _jax_defects() -> Iterator[Case]:
    for kind, build, rule, shows in (
        ("compiling", _jax(inside=jax_steps.compiling), "recompilation", "train_step"),
        ("eager", _jax(before=jax_steps.eager), "small_programs", "multiply"),
        ("calling_back", _jax(in_program=jax_steps.calling_back), "host_callbacks", "train"),
        ("exchanging", _jax(in_program=jax_steps.exchanging), "exposed_communication", "exposed"),
        ("experts", _jax(in_program=jax_steps.experts), "expert_loop", "ragged_dot"),
        ("sleeping", _jax(after=jax_steps.sleeping), "python_stall", r"sleep"),
    ):
        yield from _on(("jax",), kind, build, rule, shows)


# -- clean steps


def _once(step: int, hook: Callable[[Builder, int], None]) -> Callable[[Builder, int], None]:
    return lambda b, number: hook(b, number) if number == step else None


def _preempted(b: Builder, step: int) -> None:
    """An operator that lost its core once."""
    begin = b.now
    b.now += 20_000
    b.event(begin, b.now, "aten::sqrt")


def _first_kernel(b: Builder, step: int) -> None:
    """A module that is loaded when its kernel runs first."""
    prefix = "hip" if b.flavor == "rocm" else "cu"
    for _ in range(2):
        b.event(b.now, b.now + 130_000, f"{prefix}ModuleLoadData", cat="runtime")
        b.now += 130_001
    b.op("aten::erfinv", 20, kernel="erfinv_kernel")


def _first_compile(b: Builder, step: int) -> None:
    begin = b.now
    b.now += 50_000
    b.event(begin, b.now, "_compile.compile_inner (dynamo_timed)", cat="annotation")


def _pinned(b: Builder, step: int) -> None:
    if b.on_device:
        with b.span("aten::to"), b.span("aten::copy_"):
            b.copy(_to_device(b, pageable=False), 40)


def _few(b: Builder, step: int) -> None:
    for _ in range(3):
        b.op("aten::add", 8)


def _overlapped(b: Builder, step: int) -> None:
    if b.on_device:
        _all_reduce(300, 12_000_000)(b, step)


def _fused_attention(b: Builder, step: int) -> None:
    with b.span("aten::scaled_dot_product_attention"):
        b.op("aten::_scaled_dot_product_flash_attention", 300, "attention")


def _adadelta(b: Builder, step: int) -> None:
    """Foreach on a device: nothing better exists for this class."""
    name = "aten::_foreach_add_" if b.on_device else "aten::mul_"
    for _ in range(50):
        b.op(name, 4, cpu=3)


def _lbfgs(b: Builder, step: int) -> None:
    for _ in range(60):
        b.op("aten::mul", 6, cpu=3)


def _prefetched(b: Builder, step: int) -> None:
    if b.on_device:
        _gathering(b, step, early=True)


def _loss_item(b: Builder, step: int) -> None:
    _item(b, step)


def _slow_step(b: Builder, step: int) -> None:
    b.python(6000, "train.py(20): main")


def _evaluated_once(b: Builder, step: int) -> None:
    begin, at = b.now, len(b.lines)
    b.op("aten::mm", 400, "gemm")
    b._line(b.thread, begin, b.now, "train.py(95): evaluate", {"cat": "python"}, at)
    b.now += 1


CLEAN: dict[str, Callable[[Builder], Any]] = {
    "linear": _planted(),
    "convolution": _planted(kind="conv"),
    "deep": _planted(layers=14, layer_us=200.0),
    "plain": _planted(norm=False),
    "preempted": _planted(after_forward=_once(2, _preempted)),
    "first_kernel": _planted(before=_once(1, _first_kernel)),
    "first_compile": _planted(before=_once(1, _first_compile)),
    "pinned": _planted(before=_pinned),
    "few_small": _planted(after_forward=_few),
    "overlapped": _planted(in_backward_layer=_overlapped),
    "sdpa": _planted(in_layer=_fused_attention),
    "Adadelta": _planted(optimizer="Adadelta", update=_adadelta),
    "LBFGS": _planted(optimizer="LBFGS", update=_lbfgs),
    "slow_step": _planted(after=_once(3, _slow_step)),
    "evaluated": _planted(after=_once(4, _evaluated_once)),
    "grouped": _planted(in_layer=_grouped),
    "prefetched": _planted(in_backward_layer=_prefetched),
}
JAX_CLEAN = {
    "jitted": _jax(),
    "few_programs": _jax(after=jax_steps.few),
    "compiled_once": _jax(inside=_once(0, jax_steps.compiling)),
    "overlapping": _jax(in_program=jax_steps.overlapping),
    "ragged": _jax(in_program=jax_steps.grouped),
}


def _clean() -> Iterator[Case]:
    for kind, build in CLEAN.items():
        yield from _on(ALL, kind, build)
    for kind, build in JAX_CLEAN.items():
        yield from _on(("jax",), kind, build)


DEFECTS = tuple(_defects())
CLEAN_CASES = tuple(_clean())
