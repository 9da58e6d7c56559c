"""Networks of blocks: words to words, words to a class, images to a class."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from benchmarks.layered.blocks import Block, MixerBlock
from torch import Tensor, nn


class Words(nn.Module):
    """Embedded words through blocks to scores: for each word (GPT-2), or for the text (BERT)."""

    def __init__(
        self, words: int, length: int, width: int, blocks: int, causal: bool, **options: Any
    ) -> None:
        super().__init__()
        self.causal = causal
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(width, causal=causal, after=not causal, **options) for _ in range(blocks)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, words if causal else 2)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x if self.causal else x[:, 0])).flatten(0, -2)


class Patches(nn.Module):
    """Images cut into patches of 4 x 4, through blocks, to scores of 100 classes."""

    def __init__(self, width: int, blocks: int, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 4, stride=4)
        self.blocks = nn.ModuleList(block() for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 100)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def vision_transformer(width: int, blocks: int, **options: Any) -> Patches:
    """A ViT without a token for the class."""
    return Patches(width, blocks, lambda: Block(width, **options))


def mixer(places: int, width: int, blocks: int, **options: Any) -> Patches:
    """An MLP-Mixer (Tolstikhin et al., 2021)."""
    return Patches(width, blocks, lambda: MixerBlock(places, width, **options))
