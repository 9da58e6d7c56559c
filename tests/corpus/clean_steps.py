"""Clean steps: what they do is no defect, or happens once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hooks
import jax_steps
from builder import Builder
from case import ALL, Case, on, planted


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
            b.copy(hooks.to_device(b, pageable=False), 40)


def _few(b: Builder, step: int) -> None:
    for _ in range(3):
        b.op("aten::add", 8)


def _overlapped(b: Builder, step: int) -> None:
    if b.on_device:
        hooks.all_reduce(300, 12_000_000)(b, step)


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
        hooks.gathering(b, step, early=True)


def _loss_item(b: Builder, step: int) -> None:
    hooks.item(b, step)


def _slow_step(b: Builder, step: int) -> None:
    b.python(6000, "train.py(20): main")


def _evaluated_once(b: Builder, step: int) -> None:
    begin, at = b.now, len(b.lines)
    b.op("aten::mm", 400, "gemm")
    b._line(b.thread, begin, b.now, "train.py(95): evaluate", {"cat": "python"}, at)
    b.now += 1


def _updates_known(b: Builder) -> dict[str, Any]:
    planted()(b)
    return {"capture": {"updated_modules": {"AdamW": ["net.head"], "": ["net.body"]}}}


CLEAN: dict[str, Callable[[Builder], Any]] = {
    "linear": planted(),
    "convolution": planted(kind="conv"),
    "deep": planted(layers=14, layer_us=200.0),
    "plain": planted(norm=False),
    "preempted": planted(after_forward=_once(2, _preempted)),
    "first_kernel": planted(before=_once(1, _first_kernel)),
    "first_compile": planted(before=_once(1, _first_compile)),
    "pinned": planted(before=_pinned),
    "few_small": planted(after_forward=_few),
    "overlapped": planted(in_backward_layer=_overlapped),
    "sdpa": planted(in_layer=_fused_attention),
    "Adadelta": planted(optimizer="Adadelta", update=_adadelta),
    "LBFGS": planted(optimizer="LBFGS", update=_lbfgs),
    "slow_step": planted(after=_once(3, _slow_step)),
    "evaluated": planted(after=_once(4, _evaluated_once)),
    "grouped": planted(in_layer=hooks.grouped),
    "prefetched": planted(in_backward_layer=_prefetched),
    "updates_known": _updates_known,
}
JAX_CLEAN = {
    "jitted": jax_steps.changed(),
    "few_programs": jax_steps.changed(after=jax_steps.few),
    "compiled_once": jax_steps.changed(inside=_once(0, jax_steps.compiling)),
    "overlapping": jax_steps.changed(in_program=jax_steps.overlapping),
    "ragged": jax_steps.changed(in_program=jax_steps.grouped),
}


CLEAN_CASES: tuple[Case, ...] = (
    *(case for kind, build in CLEAN.items() for case in on(ALL, kind, build)),
    *(case for kind, build in JAX_CLEAN.items() for case in on(("jax",), kind, build)),
)
