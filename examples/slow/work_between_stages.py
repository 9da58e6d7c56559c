"""Draws a histogram of all weights in each step. Rule: work_between_stages."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6))
model = nn.Sequential(*layers).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
numbers = iter(range(args.steps))
histograms = {}


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if not args.fixed or next(numbers) % 10 == 0:
        for name, weight in model.named_parameters():
            histograms[name] = torch.histc(weight.detach(), 64)


train(step, (torch.randn(64, 256) for _ in range(args.steps)))
