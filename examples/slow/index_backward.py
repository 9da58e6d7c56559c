"""Looks rows up by table[rows], whose backward adds in a fixed order. Rule: index_backward."""

import torch
from common import arguments, device, train

args = arguments(__doc__)
table = torch.randn(1000, 64, device=device(), requires_grad=True)
optimizer = torch.optim.SGD([table], lr=1e-3)


def look_up(rows):
    return table.index_select(0, rows) if args.fixed else table[rows]


def step(rows):
    loss = look_up(rows.to(device())).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randint(1000, (2_000,)) for _ in range(args.steps)))
