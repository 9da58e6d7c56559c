"""Training steps of small models, clean unless a case changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from builder import Builder

SHAPES = {
    "cuda": [[8192, 2048], [2048, 2048]],
    "rocm": [[16384, 4096], [4096, 2048]],
    "cpu": [[256, 512], [512, 512]],
}
Hook = Callable[[Builder, int], None]


def _nothing(builder: Builder, step: int) -> None:
    pass


@dataclass
class Model:
    """A model and its training loop; every part can be replaced.

    Attributes:
        layers: how many.
        layer_us: the time of the product of a layer, forward.
        kind: `gemm` or `conv`.
        norm: whether each layer has a normalization and an activation.
        optimizer: class of the optimizer.
        load, before, in_forward, in_layer, after_forward, before_update, after: hooks.
    """

    layers: int = 6
    layer_us: float = 400.0
    kind: str = "gemm"
    norm: bool = True
    optimizer: str = "AdamW"
    shape: list[list[int]] | None = None  # such that products reach half of the device's peak
    dtype: str = "c10::BFloat16"
    kernel: str = ""
    cpu_us: float = 4.0
    load: Hook = _nothing
    before: Hook = _nothing
    in_layer: Hook = _nothing
    in_backward_layer: Hook = _nothing
    after_forward: Hook = _nothing
    after_backward: Hook = _nothing
    update: Hook | None = None
    after: Hook = _nothing
    metadata: dict[str, Any] = field(default_factory=dict)

    def run(self, builder: Builder, steps: int = 5) -> None:
        """Draw some steps."""
        for number in range(steps):
            with builder.step(number):
                self._step(builder, number)

    def _step(self, b: Builder, number: int) -> None:
        with b.span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
            b.now += 20
            self.load(b, number)
        self.before(b, number)
        sequences = []
        for layer in range(self.layers):
            sequences.append(self._forward(b, number, layer))
        self.after_forward(b, number)
        for sequence in reversed(sequences):
            self._backward(b, number, sequence)
        self.after_backward(b, number)
        self._update(b, number)
        if b.on_device:
            self._keep_pace(b)
        self.after(b, number)

    def _forward(self, b: Builder, number: int, layer: int) -> int:
        sequence = b.next_sequence()
        name = "aten::mm" if self.kind == "gemm" else "aten::convolution"
        b.op(
            name,
            self.layer_us,
            self.kind,
            self.kernel,
            self.cpu_us,
            seq=sequence,
            Input_Dims=self.shape or SHAPES[b.flavor],
            Input_type=[self.dtype, self.dtype],
        )
        if self.norm:
            b.op("aten::native_layer_norm", self.layer_us / 12, "norm", cpu=self.cpu_us)
            b.op("aten::gelu", self.layer_us / 20, cpu=self.cpu_us)
        self.in_layer(b, number)
        return sequence

    def _backward(self, b: Builder, number: int, sequence: int) -> None:
        node = "MmBackward0" if self.kind == "gemm" else "ConvolutionBackward0"
        with b.span(f"autograd::engine::evaluate_function: {node}", seq=sequence, fwd=1):
            for _ in range(2):
                b.op(
                    "aten::mm",
                    self.layer_us,
                    self.kind,
                    self.kernel,
                    self.cpu_us,
                    Input_Dims=self.shape or SHAPES[b.flavor],
                    Input_type=[self.dtype, self.dtype],
                )
        self.in_backward_layer(b, number)

    def _update(self, b: Builder, number: int) -> None:
        with b.span(f"Optimizer.step#{self.optimizer}.step"):
            if self.update:
                self.update(b, number)
            else:
                name = f"aten::_fused_{self.optimizer.lower()}_"
                b.op(name, self.layer_us / 2, kernel="multi_tensor_apply_kernel<FusedAdamMath>")

    def _keep_pace(self, b: Builder) -> None:
        """Read the loss, as most loops do: the CPU waits for the device."""
        with b.span("aten::item"), b.span("aten::_local_scalar_dense"):
            b.wait()
