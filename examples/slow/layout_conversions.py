"""Convolves in channels_last, normalizes in NCHW, and converts twice a block.

Rule: layout_conversions.
"""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 3, padding=1, groups=channels)
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = self.depthwise(x)
        if args.fixed:
            return x + torch.relu(self.norm(y))
        y = torch.relu(self.norm(y.contiguous()))
        return x + y.contiguous(memory_format=torch.channels_last)


model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *(Block(64) for _ in range(6)))
model = model.to(device(), memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(images):
    loss = model(images.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def images():
    return torch.randn(8, 3, 32, 32).to(memory_format=torch.channels_last)


train(step, (images() for _ in range(args.steps)))
