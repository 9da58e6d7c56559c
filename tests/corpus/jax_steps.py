"""Training steps of JAX: one compiled program per step, clean unless a case changes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from builder import Builder

Hook = Callable[[Builder, int], None]
SOURCE = "/home/me/train.py:12"


def _nothing(builder: Builder, step: int) -> None:
    pass


@dataclass
class JaxStep:
    """A jitted training step and its loop; every part can be replaced.

    Attributes:
        products: matrix products of a step.
        product_us: the time of each.
        before: what the loop does before it calls the step.
        inside: what the call does before it launches.
        in_program: device work of the program, after half of the products.
        after: what the loop does after the call.
    """

    products: int = 12
    product_us: float = 400.0
    before: Hook = _nothing
    inside: Hook = _nothing
    in_program: Hook = _nothing
    after: Hook = _nothing

    def run(self, builder: Builder, steps: int = 5) -> None:
        """Draw some steps."""
        for number in range(steps):
            begin, at = builder.now, len(builder.lines)
            self._step(builder, number)
            name, options = f"train#step_num={number}", {"cat": "annotation"}
            builder._line(builder.thread, begin, builder.now, name, options, at)
            builder.now += 1

    def _step(self, b: Builder, number: int) -> None:
        self.before(b, number)
        with b.span("PjitFunction(train_step)", cat="runtime"):
            self.inside(b, number)
            for place in range(self.products):
                operation(b, f"gemm_fusion_dot_{place}", self.product_us)
                if place == self.products // 2:
                    self.in_program(b, number)
        b.wait("cuStreamSynchronize")
        self.after(b, number)


def operation(b: Builder, name: str, us: float, **options: str) -> None:
    """An operation of the program on the device."""
    b.launch(name, us, hlo__module="jit_train_step", source=SOURCE, **options)


def experts(b: Builder, step: int) -> None:
    """A product for each expert, as a Python loop under jax.jit unrolls to."""
    for expert in range(24):
        operation(
            b, f"gemm_fusion_dot_e{expert}", 60, scope=f"jit(train_step)/moe/experts_{expert}/dot_general"
        )


def grouped(b: Builder, step: int) -> None:
    """One product for all experts."""
    operation(b, "ragged_dot_fusion", 500, scope="jit(train_step)/moe/ragged_dot")


def compiling(b: Builder, step: int) -> None:
    """A call that compiles."""
    begin = b.now
    b.now += 4000
    b.event(begin, b.now, "backend_compile_and_load", cat="annotation")


def eager(b: Builder, step: int) -> None:
    """Operations outside of the program, one by one."""
    for _ in range(40):
        with b.span("PjitFunction(multiply)", cat="runtime"):
            b.now += 60
            operation(b, "loop_multiply_fusion", 4)
        b.now += 20


def few(b: Builder, step: int) -> None:
    """A loss that is averaged outside of the program."""
    with b.span("PjitFunction(mean)", cat="runtime"):
        operation(b, "loop_reduce_fusion", 4)


def calling_back(b: Builder, step: int) -> None:
    """A callback into Python that the program waits for."""
    b.free[7] += 3000
    b.event(b.now, b.free[7], "debug_callback.1", hlo__module="jit_train_step", source=SOURCE)
    b.now = b.free[7] + 1


def exchanging(b: Builder, step: int) -> None:
    """An all-reduce that nothing overlaps."""
    b.free[20] = max(b.free.values())
    end = b.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 4000, stream=20)
    b.free[7] = end


def overlapping(b: Builder, step: int) -> None:
    """An all-reduce while the program computes."""
    b.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 300, stream=20)


def sleeping(b: Builder, step: int) -> None:
    """Python that keeps the loop."""
    b.python(4000, "train.py(40): main", "<built-in function sleep>")


def changed(**changes: Any) -> Callable[[Builder], None]:
    """A step with these changes."""
    return lambda b: JaxStep(**changes).run(b)
