"""Steps with one planted defect each, and the rule that must report it."""

from __future__ import annotations

import hooks
import jax_steps
from case import ALL, DEVICES, Case, on, planted

_SYNC = "synchronizing_calls"
_LOADING = {
    "decoding": "PIL/Image.py(3000): open",
    "collating": "torch/utils/data/_utils/collate.py(100): default_collate",
    "augmenting": "torchvision/transforms/functional.py(300): resize",
}

PYTHON: tuple[Case, ...] = (
    *(
        case
        for kind, (frames, shows) in hooks.STALLS.items()
        for case in on(DEVICES, kind, hooks.python(frames), "python_stall", shows)
    ),
    *(
        case
        for kind in ("logging", "metrics", "sleep")
        for case in on(
            ("cpu",), kind, hooks.python(hooks.STALLS[kind][0]), "cpu_latency", hooks.STALLS[kind][1]
        )
    ),
)
SYNCHRONIZATION: tuple[Case, ...] = (
    *on(DEVICES, "item", planted(in_layer=hooks.after_wait(hooks.item, 150)), _SYNC, r"\.item\(\)"),
    *on(("cpu",), "item", planted(after_forward=hooks.items_on_cpu), _SYNC, r"\.item\(\)"),
    *on(DEVICES, "cpu_copy", planted(in_layer=hooks.after_wait(hooks.to_cpu, 150)), _SYNC, "cpu"),
    *on(DEVICES, "nonzero", planted(in_layer=hooks.after_wait(hooks.nonzero, 150)), _SYNC, "nonz"),
    *on(DEVICES, "synchronize", planted(in_layer=hooks.after_wait(hooks.explicit, 150)), _SYNC, "explicit"),
)
DATA: tuple[Case, ...] = (
    *on(DEVICES, "pageable", planted(before=hooks.pageable), "pageable_copies", "block"),
    *on(ALL, "loading", planted(load=hooks.loading()), "input_bound", "batch"),
    *(
        case
        for part, frame in _LOADING.items()
        for case in on(
            ("cuda", "cpu"),
            part,
            planted(load=hooks.loading("data.py(20): __getitem__", frame)),
            "input_bound",
            part,
        )
    ),
    *on(("cuda", "cpu"), "workers", hooks.too_many_workers, "too_many_workers", "16.* 4 CPU"),
)
LAUNCHES: tuple[Case, ...] = (
    *on(DEVICES, "slow_launches", planted(in_layer=hooks.slow_launches), "cpu_latency", "forward"),
    *on(
        ("cuda", "cpu"),
        "small_chain",
        planted(in_layer=hooks.chain(60, 6)),
        "kernel_fusion",
        "small elementwise",
    ),
    *on(ALL, "large_chain", planted(in_layer=hooks.chain(8, 150)), "kernel_fusion", "Chains"),
)
OPTIMIZERS: tuple[Case, ...] = (
    *(
        case
        for name in ("AdamW", "SGD")
        for case in on(
            DEVICES,
            f"{name}_loop",
            planted(optimizer=name, layer_us=60.0, update=hooks.loop_update(name, 240)),
            "optimizer_loop",
            rf"torch\.optim\.{name}\(\.\.\., fused=True\)",
        )
    ),
    *on(
        ("cpu",),
        "AdamW_loop",
        planted(optimizer="AdamW", update=hooks.loop_update("AdamW", 240)),
        "optimizer_loop",
        "fused=True",
    ),
    *on(
        DEVICES,
        "RMSprop_loop",
        planted(optimizer="RMSprop", layer_us=60.0, update=hooks.loop_update("RMSprop", 240)),
        "optimizer_loop",
        "foreach=True",
    ),
    *on(
        ("cuda",),
        "Adam_foreach",
        planted(optimizer="Adam", layer_us=60.0, update=hooks.foreach_update),
        "optimizer_loop",
        "fused=True",
    ),
)
OPERATORS: tuple[Case, ...] = (
    *on(("cuda", "cpu"), "small_batch", hooks.small_batch, ("small_batch",), "2 rows"),
    *on(
        ALL,
        "attention",
        planted(in_layer=hooks.attention),
        "unfused_attention",
        "scaled_dot_product_attention",
    ),
    *on(
        ALL,
        "sort",
        planted(after_forward=hooks.hot("aten::sort", "radixSortKVInPlace")),
        "hotspot",
        "(?i)sort",
    ),
    *on(
        DEVICES,
        "cumsum",
        planted(after_forward=hooks.hot("aten::cumsum", "tensor_kernel_scan_innermost_dim")),
        "hotspot",
        "triangular",
    ),
    *on(
        DEVICES,
        "layouts",
        planted(kind="conv", in_layer=hooks.layouts),
        "layout_conversions",
        "channels_last",
    ),
    *on(
        ("cpu",),
        "layouts",
        planted(kind="conv", in_layer=hooks.layouts_on_cpu),
        "layout_conversions",
        "channels_last",
    ),
)
GRADIENTS: tuple[Case, ...] = (
    *on(
        ALL,
        "index_backward",
        hooks.with_gradient("aten::index", "IndexBackward0", 40, 2500),
        "index_backward",
        "index_select",
    ),
    *on(
        ALL,
        "embedding",
        hooks.with_gradient("aten::embedding", "EmbeddingBackward0", 30, 2500),
        "forward_backward",
        "sparse=True",
    ),
    *on(
        ("cuda", "cpu"),
        "slices",
        hooks.with_gradient("aten::slice", "SliceBackward0", 1, 2500),
        "forward_backward",
        "all parts at once",
    ),
    *on(ALL, "zeroing", planted(after_backward=hooks.zeroing), "zero_grad_memset", "set_to_none"),
)
MEMORY_AND_COMPILING: tuple[Case, ...] = (
    *on(
        ("cuda", "cpu"),
        "recompiling",
        planted(before=hooks.compiling),
        "recompilation",
        "compiles once per step",
    ),
    *on(DEVICES, "allocating", planted(before=hooks.allocating), "allocator_churn", "memory"),
)
RANKS: tuple[Case, ...] = (
    *on(
        DEVICES,
        "exposed",
        planted(after_backward=hooks.all_reduce(4000, 80_000_000)),
        "exposed_communication",
        "exposed",
    ),
    *on(
        DEVICES, "small_buckets", planted(after_backward=hooks.many_reduces), "small_buckets", "bucket_cap_mb"
    ),
    *on(
        DEVICES,
        "unused_parameters",
        planted(before=hooks.unused),
        "ddp_unused_parameters",
        "find_unused_parameters=False",
    ),
)
LOOP: tuple[Case, ...] = (
    *on(ALL, "checkpoint", planted(after=hooks.every(3, hooks.save)), "checkpoint_in_loop", r"train\.py:80"),
    *on(
        ALL,
        "evaluation",
        planted(after=hooks.every(2, hooks.evaluate)),
        "frequent_evaluation",
        r"train\.py:95",
    ),
)
DEVICE: tuple[Case, ...] = (
    *on(DEVICES, "skinny", planted(in_layer=hooks.skinny), "low_utilization", "aten|gemm|Cij"),
    *on(("cuda",), "odd_shapes", hooks.odd, ("odd_shapes", "low_utilization"), "multiple"),
    *on(("cuda",), "fp32", hooks.fp32, "fp32_matmul", "FP32"),
    *on(ALL, "fp64", planted(dtype="double"), "fp64_matmul", "FP64"),
    *on(("cpu",), "bf16", hooks.bf16_on_cpu, "slow_fallback", "BF16"),
    *on(("rocm",), "naive_convolution", hooks.naive_convolution, "slow_fallback", "naive_conv"),
)
EXPERTS_AND_SHARDS: tuple[Case, ...] = (
    *on(ALL, "experts", planted(in_layer=hooks.experts), "expert_loop", r"one after the other.*busiest"),
    *(
        case
        for stage, hook in {"forward": "in_layer", "backward": "in_backward_layer"}.items()
        for case in on(
            DEVICES,
            f"fsdp_{stage}",
            planted(**{hook: hooks.gathering}),
            "fsdp_prefetch",
            f"set_modules_to_{stage}_prefetch",
        )
    ),
    *on(DEVICES, "retrying", planted(before=hooks.retrying), "allocator_churn", "ran out of memory"),
)
_JAX = (
    ("compiling", jax_steps.changed(inside=jax_steps.compiling), "recompilation", "train_step"),
    ("eager", jax_steps.changed(before=jax_steps.eager), "small_programs", "multiply"),
    ("calling_back", jax_steps.changed(in_program=jax_steps.calling_back), "host_callbacks", "train"),
    ("exchanging", jax_steps.changed(in_program=jax_steps.exchanging), "exposed_communication", "exposed"),
    ("experts", jax_steps.changed(in_program=jax_steps.experts), "expert_loop", "ragged_dot"),
    ("sleeping", jax_steps.changed(after=jax_steps.sleeping), "python_stall", r"sleep"),
)
JAX = tuple(case for kind, build, rule, shows in _JAX for case in on(("jax",), kind, build, rule, shows))

DEFECTS = (
    *PYTHON,
    *SYNCHRONIZATION,
    *DATA,
    *LAUNCHES,
    *OPTIMIZERS,
    *OPERATORS,
    *GRADIENTS,
    *MEMORY_AND_COMPILING,
    *RANKS,
    *LOOP,
    *DEVICE,
    *EXPERTS_AND_SHARDS,
    *JAX,
)
