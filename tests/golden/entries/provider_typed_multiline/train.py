"""Providers with a signature over several lines, hints and comments."""

from __future__ import annotations

import torch


def stepscope_model_provider() -> torch.nn.Module:
    return torch.nn.Linear(8, 2)


@torch.no_grad()  # inputs need none
def stepscope_input_provider(
    *,
    length: int = 64,  # batch_size=16 was too slow with 128
    batch_size: int = (
        32
    ),  # fits a 2080 Ti
    seed: int = 32,
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(batch_size, length, generator=generator),)


def stepscope_iteration_provider(model):
    return lambda *inputs: model(*inputs).sum().backward()
