"""The training of a model in one case."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from benchmarks.gpu.case import Case
from benchmarks.gpu.models import MODELS, Batch, Spec
from benchmarks.gpu.setting import Setting
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

STAGES = ("transfer", "zero_grad", "forward", "backward", "optimizer")
Mark = Callable[[str], object]
_HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}


def _no_mark(stage: str) -> None:
    """Nobody times the stages."""


class Training:
    """A model with its optimizer and one batch on the CPU, sent to the device in each step.

    The step is that of the scripts which `parts/captures.py` generates.
    """

    def __init__(self, case: Case, setting: Setting) -> None:
        self.spec: Spec = MODELS[case.model]
        self.device = setting.device
        self.samples = self.spec.samples(setting.quick, case.batch_size)
        torch.manual_seed(setting.seed)
        allow_tf32(case.precision == "tf32")
        plain = self._build(case, setting)
        self.optimizer = _adam(plain, case.adam)
        self.host = pinned(self._host_batch(case, setting), self.device)
        # What the default backend generates on a CPU takes a C++ compiler half a minute.
        backend = "inductor" if setting.on_gpu else "aot_eager"
        self.model = torch.compile(plain, backend=backend) if case.compiled else plain
        self._half = _HALF.get(case.precision)
        # From its default of 2**16 the scale must fall first, by steps that update nothing.
        self._scaler = torch.amp.GradScaler(self.device, init_scale=2.0**8, enabled=case.precision == "fp16")

    def _build(self, case: Case, setting: Setting) -> nn.Module:
        with torch.device(self.device):
            model = self.spec.build(setting.quick).train()
        if case.channels_last:
            model = model.to(memory_format=torch.channels_last)
        if case.checkpointing:
            repeat_in_backward(model, self.spec.blocks)
        return model

    def _host_batch(self, case: Case, setting: Setting) -> Batch:
        batch = self.spec.batch(self.samples, setting.quick)
        if case.channels_last:
            batch["images"] = batch["images"].contiguous(memory_format=torch.channels_last)
        return batch

    def step(self, host: Batch | None = None, mark: Mark = _no_mark) -> Tensor:
        """One training step, on the batch at hand or on another; returns its loss.

        `mark` is called at the end of each of `STAGES`, with its name.
        """
        batch = on_device(host or self.host, self.device)
        mark("transfer")
        return self.train_on(batch, mark)

    def train_on(self, batch: Batch, mark: Mark = _no_mark) -> Tensor:
        """One training step on a batch that is on the device."""
        self.optimizer.zero_grad()
        mark("zero_grad")
        with torch.autocast(self.device, dtype=self._half, enabled=self._half is not None):
            loss = self.spec.loss(self.model, batch)
        mark("forward")
        self._scaler.scale(loss).backward()
        mark("backward")
        self._scaler.step(self.optimizer)
        self._scaler.update()
        mark("optimizer")
        return loss.detach()


def allow_tf32(allowed: bool) -> None:
    """Whether FP32 products and convolutions may be computed in TF32."""
    torch.backends.cuda.matmul.allow_tf32 = allowed
    torch.backends.cudnn.allow_tf32 = allowed


def pinned(batch: Batch, device: str) -> Batch:
    """A batch from which a GPU can copy while the CPU goes on."""
    return {name: t.pin_memory() for name, t in batch.items()} if device == "cuda" else batch


def on_device(batch: Batch, device: str) -> Batch:
    """A batch on its way to the device."""
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}


def repeat_in_backward(model: nn.Module, classes: tuple[str, ...]) -> None:
    """Keep no activations of the modules of some classes: compute them again in backward."""
    if hasattr(model, "config"):
        model.config.use_cache = False  # it would get keys and values a second time
    for module in model.modules():
        if type(module).__name__ in classes:
            module.forward = functools.partial(checkpoint, module.forward, use_reentrant=False)


def _adam(model: nn.Module, kind: str) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=1e-4, foreach=kind == "foreach", fused=kind == "fused")
