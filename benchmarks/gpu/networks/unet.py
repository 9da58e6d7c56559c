"""U-Net (Ronneberger et al., 2015), padded so that the mask is as large as the image."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn


class DoubleConv(nn.Sequential):
    """Two 3x3 convolutions, each normalized."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(
            nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """Images to a mask of one channel, over `depth` halvings of the resolution."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth + 1)]
        pairs = list(itertools.pairwise(widths))
        self.stem = DoubleConv(3, width)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.ModuleList(DoubleConv(narrow, wide) for narrow, wide in pairs)
        self.widen = nn.ModuleList(
            nn.ConvTranspose2d(wide, narrow, 2, stride=2) for narrow, wide in reversed(pairs)
        )
        self.up = nn.ModuleList(DoubleConv(2 * narrow, narrow) for narrow, _ in reversed(pairs))
        self.head = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = [self.stem(x)]
        for down in self.down:
            kept.append(down(self.pool(kept[-1])))
        x = kept.pop()
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat([kept.pop(), widen(x)], dim=1))
        return self.head(x)
