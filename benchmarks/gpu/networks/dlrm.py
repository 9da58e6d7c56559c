"""A recommendation model like DLRM (Naumov et al., 2019): embeddings, their products, two MLPs."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class Dlrm(nn.Module):
    """Numbers and categories of a visit to the score of a click.

    `categories` has shape (batch, tables, values in each bag).
    """

    def __init__(self, tables: int = 26, rows: int = 50_000, width: int = 64, numbers: int = 13) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(rows, width, mode="sum") for _ in range(tables))
        self.bottom = _perceptron(numbers, 512, 256, width)
        pairs = (tables + 1) * tables // 2
        self.top = _perceptron(width + pairs, 1024, 512, 256)
        self.head = nn.Linear(256, 1)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        sparse = [table(categories[:, column]) for column, table in enumerate(self.tables)]
        x = torch.cat([dense, _products(torch.stack([dense, *sparse], dim=1))], dim=1)
        return self.head(self.top(x)).squeeze(1)


def _products(vectors: Tensor) -> Tensor:
    """The dot product of each pair of vectors, shape (batch, pairs)."""
    count = vectors.shape[1]
    first, second = torch.tril_indices(count, count, offset=-1, device=vectors.device)
    return (vectors @ vectors.transpose(1, 2))[:, first, second]


def _perceptron(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for narrow, wide in itertools.pairwise(widths):
        layers += [nn.Linear(narrow, wide), nn.ReLU()]
    return nn.Sequential(*layers)
