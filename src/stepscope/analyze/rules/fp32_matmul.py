"""`fp32_matmul`: matrix products in FP32 on a device with tensor cores."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.errors import StepscopeError
from stepscope.graph import Graph
from stepscope.models.whatif import CHANGES
from stepscope.models.whatif.changes.pad_to_aligned import odd_sizes
from stepscope.trace.schema import PRODUCT_KINDS

_FP32 = r"sgemm|scudnn|_f32f32_f32f32|<float, (float|\d)|, float, float,|simt_s|_SB_|_S_MT"
_OTHER = (
    r"tf32|TF32|half|bf16|f16|bfloat|hmma|s1688|s16816|h884|s884|fp16|__half|double"
    r"|fp8|e4m3|e5m2|imma|int8"
)
_BOUND = "at most the time of these kernels: the file does not show when the CPU waits for them"
_WORTH = 0.01  # of the step
_OF_CUDNN = r"^aten::(\w*conv\w*|_cudnn_rnn\w*|lstm|gru|rnn_\w+)$"
_TF32_SINCE = 8  # compute capability: Ampere
LIBRARIES = {
    "transformers": "Set bf16=True (or tf32=True) in TrainingArguments.",
    "lightning": "Create the Trainer with precision='bf16-mixed'.",
    "accelerate": "Create Accelerator(mixed_precision='bf16').",
    "keras": "Call keras.mixed_precision.set_global_policy('mixed_bfloat16').",
    "timm": "Run with --amp --amp-dtype bfloat16.",
}


def fp32_matmul(context: RuleContext) -> Iterator[Finding]:
    """Matrix products and convolutions in FP32 on a device with tensor cores.

    Silent if kernels whose names show FP32 take less than 5 % of the step, on devices without tensor cores
    (before Volta), and on devices for which `stepscope whatif amp` has no speedups (AMD).
    """
    major = context.measures.device_facts().get("computeMajor") or 0
    rows = context.search.find(_FP32, kind=PRODUCT_KINDS, on_device=True)
    rows = np.setdiff1d(rows, context.search.find(_OTHER, kind=PRODUCT_KINDS, on_device=True))
    if major < 7 or context.measures.is_small(context.measures.ms(rows)):
        return
    gain = context.gains.whatif("amp")
    if gain is None:
        return
    if context.measures.is_small(gain.ms) and not len(context.search.find(category="cpu_op")):
        # Without operators nothing shows when the CPU works and when it waits for these kernels.
        gain = context.gains.bound(context.measures.ms(rows), _BOUND)
    padded, aligning = _alignment(context)
    if padded is not None and padded.ms > gain.ms:
        gain = padded
    yield context.finding(
        f"{rounded(context.measures.calls(rows), 4)} kernels per step "
        f"({rounded(context.measures.ms(rows))} ms) compute in FP32, without tensor cores. "
        "They are matrix products or convolutions on a device that has tensor cores.",
        aligning + context.advice(_advice(context, rows, major), jax=_jax(major), **LIBRARIES),
        rows,
        gain,
    )


def _alignment(context: RuleContext) -> tuple[Gain | None, str]:
    """The gain of AMP with sizes padded first, and advice to pad where the device then gains more."""
    both = context.gains.whatif("amp", "pad_to_aligned")
    if both is None:
        return None, ""
    graph = context.gains.graph
    saved = max(_saved_ms(graph, change) for change in ("amp", "tf32"))
    if saved < _WORTH * context.measures.step_ms:
        return None, ""
    sizes = graph.once(odd_sizes)
    listed = ", ".join(map(str, sizes[:3])) + (", …" if len(sizes) > 3 else "")
    return both, (
        f"First pad sizes that are not multiples of 8 ({listed}). In TF32 or 16 bits they cost the device "
        f"up to {rounded(saved)} ms per step, since tensor cores are slow on rows that are not multiples "
        "of 16 bytes. "
    )


def _saved_ms(graph: Graph, change: str) -> float:
    """What padding saves of the device's work after a change, ms per step."""
    try:
        changed = CHANGES[change].apply(graph)
        padded = CHANGES["pad_to_aligned"].apply(changed)
    except StepscopeError:
        return 0.0
    work = (int(one.tasks["duration_ns"][one.on_device].sum()) for one in (changed, padded))
    return (next(work) - next(work)) / 1e6 / len(graph.window.steps)


def _advice(context: RuleContext, rows: Rows, major: int) -> str:
    """cuDNN has a switch of its own for convolutions and recurrent layers."""
    time = context.events["duration_ns"][rows]
    of_cudnn = context.search.within(context.search.find(_OF_CUDNN, category="cpu_op"))[rows]
    if major >= _TF32_SINCE and time[of_cudnn].sum() > time[~of_cudnn].sum():
        images = context.events.text("kind").mask("convolution")[rows].any()
        layout = " and memory_format=torch.channels_last" if images else ""
        return (
            "Set torch.backends.cudnn.allow_tf32 = True (the default) for TF32, or use torch.autocast with "
            f"bfloat16{layout}."
        )
    if major >= _TF32_SINCE:
        return "Use torch.set_float32_matmul_precision('high') for TF32, or torch.autocast with bfloat16."
    return "Use torch.autocast with float16 and a GradScaler."


def _jax(major: int) -> str:
    if major >= _TF32_SINCE:
        return (
            "Use jax.config.update('jax_default_matmul_precision', 'tensorfloat32'), or compute in "
            "jnp.bfloat16."
        )
    return "Compute in jnp.float16, with the loss scaled (jmp.DynamicLossScale)."
