"""A network of Inception blocks (Szegedy et al., 2014), whose 1x1 convolutions can be merged."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Branches(nn.Module):
    """Four branches of one input; the three 1x1 convolutions at their starts apart, or as one."""

    def __init__(self, width: int, merged: bool = False) -> None:
        super().__init__()
        self.parts = [width // 4, width // 4, width // 8]
        if merged:
            self.all = nn.Conv2d(width, sum(self.parts), 1)
        else:
            self.one, self.before3, self.before5 = (nn.Conv2d(width, n, 1) for n in self.parts)
        self.three = nn.Conv2d(width // 4, width // 4, 3, padding=1)
        self.five = nn.Conv2d(width // 8, width // 4, 5, padding=2)
        self.pool, self.last = nn.MaxPool2d(3, 1, 1), nn.Conv2d(width, width // 4, 1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        one, three, five = (
            self.all(x).split(self.parts, 1)
            if hasattr(self, "all")
            else (self.one(x), self.before3(x), self.before5(x))
        )
        found = [one, self.three(three.relu()), self.five(five.relu()), self.last(self.pool(x))]
        return self.norm(torch.cat(found, 1)).relu()


class Inception(nn.Module):
    """A stem and blocks of one resolution to scores of 100 classes."""

    def __init__(self, width: int, blocks: int, merged: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(Branches(width, merged) for _ in range(blocks))
        self.head = nn.Linear(width, 100)

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))
