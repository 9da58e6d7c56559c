"""Fills gradients with zeros before each backward, which then adds to them.

Rule: zero_grad_memset.
"""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(60))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad(set_to_none=args.fixed)
    loss.backward()
    optimizer.step()


train(step, (torch.randn(2, 128) for _ in range(args.steps)))
