"""Evaluates in each step, with gradients enabled. Rule: forward_without_backward."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6))
model = nn.Sequential(*layers).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
held_out = torch.randn(256, 256, device=device())
numbers = iter(range(args.steps))


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not args.fixed:
        model(held_out).square().mean()
    elif next(numbers) % 10 == 0:
        with torch.inference_mode():
            model(held_out).square().mean()


train(step, (torch.randn(64, 256) for _ in range(args.steps)))
