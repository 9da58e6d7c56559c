"""Three small models, their batches and their loss: GPT-2, ResNet-50, and an LSTM like GNMT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from benchmarks.gpu.networks.gnmt import Gnmt
from benchmarks.gpu.networks.resnet import ResNet50
from torch import Tensor, nn

LEARNING_RATE, MOMENTUM = 1e-3, 0.9


@dataclass(frozen=True)
class Task:
    """A model, and the loss of one random batch of it."""

    model: nn.Module
    loss: Callable[[nn.Module], Tensor]


def gpt2() -> Task:
    """A GPT-2 of 9 million parameters, 4 layers of 384."""
    from transformers import GPT2Config, GPT2LMHeadModel

    words, length = 4096, 64
    config = GPT2Config(
        vocab_size=words,
        n_positions=length,
        n_embd=384,
        n_layer=4,
        n_head=6,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )

    def loss(model: nn.Module) -> Tensor:
        tokens = torch.randint(words, (2, length))
        return model(input_ids=tokens, labels=tokens).loss

    return Task(GPT2LMHeadModel(config).train(), loss)


def resnet50() -> Task:
    """A ResNet-50 of half the width, 6 million parameters, on 4 images of 64 x 64."""

    def loss(model: nn.Module) -> Tensor:
        images, labels = torch.randn(4, 3, 64, 64), torch.randint(100, (4,))
        return F.cross_entropy(model(images), labels)

    return Task(ResNet50(width=32, classes=100).train(), loss)


def gnmt() -> Task:
    """An LSTM translator of 7 million parameters: 3 + 3 layers of 256, sentences of 25 words."""
    words, length = 4000, 25

    def loss(model: nn.Module) -> Tensor:
        source, target, wanted = (torch.randint(words, (4, length)) for _ in range(3))
        return F.cross_entropy(model(source, target).flatten(0, 1), wanted.flatten())

    return Task(Gnmt(words=words, width=256, layers=3).train(), loss)


MODELS = {"GPT-2": gpt2, "ResNet-50": resnet50, "GNMT": gnmt}


def make_task(name: str) -> Task:
    """The task of a name in `MODELS`, with the same weights in every process."""
    torch.manual_seed(0)
    return MODELS[name]()
