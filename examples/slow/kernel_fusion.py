"""Writes the GELU out in small operators; F.gelu is one. Rule: kernel_fusion."""

import torch
import torch.nn.functional as F
from common import arguments, train
from torch import nn

args = arguments(__doc__)


def gelu(x):
    if args.fixed:
        return F.gelu(x, approximate="tanh")
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3)


def step(x):
    for layer in layers:
        x = gelu(layer(x))
    optimizer.zero_grad()
    x.square().mean().backward()
    optimizer.step()


train(step, (torch.randn(32, 64) for _ in range(args.steps)))
