"""Computes in BF16 on a CPU without instructions for it. Rule: slow_fallback."""

import torch
from common import arguments, train
from torch import nn

args = arguments(__doc__)
model = nn.Sequential(nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64))
model(torch.randn(1, 16, 16, 16))  # creates the weights
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    with torch.autocast("cpu", torch.bfloat16, enabled=not args.fixed):
        loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(16, 16, 16, 16) for _ in range(args.steps)))
