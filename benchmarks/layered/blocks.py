"""Blocks of transformers and of MLP-Mixers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    """Query, key and value as three products, or as one."""

    def __init__(self, width: int, heads: int, causal: bool, merged: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        if merged:
            self.all = nn.Linear(width, 3 * width)
        else:
            self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            self.all(x).chunk(3, -1) if hasattr(self, "all") else (self.query(x), self.key(x), self.value(x))
        )
        split = [part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*split, is_causal=self.causal)
        return self.out(mixed.transpose(1, 2).flatten(-2))


def perceptron(width: int, hidden: int) -> nn.Sequential:
    """Two products with a GELU between them."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


class Block(nn.Module):
    """Attention and a perceptron of `times` the width; normalized before, as GPT-2, or `after`."""

    def __init__(
        self, width: int, causal: bool = False, after: bool = False, merged: bool = False, times: float = 4
    ) -> None:
        super().__init__()
        self.after = after
        self.attention = Attention(width, width // 32, causal, merged)
        self.mlp = perceptron(width, int(times * width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        if self.after:
            x = self.norm1(x + self.attention(x))
            return self.norm2(x + self.mlp(x))
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class MixerBlock(nn.Module):
    """Perceptrons over places and over channels; the one over channels is `times` as wide."""

    def __init__(self, places: int, width: int, times: float = 4) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.tokens = perceptron(places, 2 * places)
        self.mlp = perceptron(width, int(times * width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.mlp(self.norm2(x))
