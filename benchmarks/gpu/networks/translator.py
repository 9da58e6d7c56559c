"""The Transformer for translation (Vaswani et al., 2017), on torch.nn.Transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Translator(nn.Module):
    """Source and target words to scores of the next target words."""

    def __init__(
        self, words: int = 32000, width: int = 512, layers: int = 6, heads: int = 8, length: int = 512
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(length, width)
        self.transformer = nn.Transformer(
            width, heads, layers, layers, dim_feedforward=4 * width, batch_first=True
        )
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1], device=target.device)
        states = self.transformer(self._embed(source), self._embed(target), tgt_mask=mask, tgt_is_causal=True)
        return self.head(states)

    def _embed(self, words: Tensor) -> Tensor:
        return self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
