"""Trains on one sample at a time; a step of 64 takes hardly longer. Rule: small_batch."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
batch = 1024 if args.fixed else 1
model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def step(samples):
    loss = model(samples.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


print(f"batch {batch}")
train(step, (torch.randn(batch, 64) for _ in range(args.steps)))
