"""Looks a bias up by bias[items], whose backward adds in a fixed order. Rule: index_backward."""

import torch
from common import arguments, device, train

args = arguments(__doc__)
bias = torch.randn(1000, device=device(), requires_grad=True)
optimizer = torch.optim.SGD([bias], lr=1e-3)


def look_up(items):
    return bias.index_select(0, items) if args.fixed else bias[items]


def step(items):
    loss = look_up(items).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


items = torch.randint(1000, (200_000,), device=device())
train(step, [items] * args.steps)
