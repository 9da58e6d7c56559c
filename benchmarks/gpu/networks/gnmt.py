"""An LSTM translator with attention like GNMT (Wu et al., 2016).

As in the original, the first encoder layer reads both ways, upper layers have residual
connections, and the attention asked by the first decoder layer goes into all others.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Attention(nn.Module):
    """What of the encoder's states each decoder state asks for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.query = nn.Linear(width, width, bias=False)

    def forward(self, asked: Tensor, states: Tensor) -> Tensor:
        scores = self.query(asked) @ states.transpose(1, 2) * states.shape[-1] ** -0.5
        return scores.softmax(dim=-1) @ states


class Encoder(nn.Module):
    """Source words to states."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.both_ways = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        self.layers = nn.ModuleList(nn.LSTM(width, width, batch_first=True) for _ in range(layers - 1))
        self.dropout = nn.Dropout(0.2)

    def forward(self, source: Tensor) -> Tensor:
        x, _ = self.both_ways(self.dropout(self.words(source)))
        for layer in self.layers:
            x = x + layer(self.dropout(x))[0]
        return x


class Decoder(nn.Module):
    """Target words and the encoder's states to states."""

    def __init__(self, words: int, width: int, layers: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.first = nn.LSTM(width, width, batch_first=True)
        self.attention = Attention(width)
        self.layers = nn.ModuleList(nn.LSTM(2 * width, width, batch_first=True) for _ in range(layers - 1))
        self.dropout = nn.Dropout(0.2)

    def forward(self, target: Tensor, states: Tensor) -> Tensor:
        x, _ = self.first(self.dropout(self.words(target)))
        found = self.attention(x, states)
        for layer in self.layers:
            x = x + layer(torch.cat([self.dropout(x), found], dim=-1))[0]
        return x


class Gnmt(nn.Module):
    """Source and target words to scores of the next target words."""

    def __init__(self, words: int = 32000, width: int = 1024, layers: int = 4) -> None:
        super().__init__()
        self.encoder = Encoder(words, width, layers)
        self.decoder = Decoder(words, width, layers)
        self.head = nn.Linear(width, words)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        return self.head(self.decoder(target, self.encoder(source)))
