"""Three losses go back through the same trunk, one after the other. Rule: repeated_backward."""

import torch
from common import arguments, train
from torch import nn

args = arguments(__doc__)
trunk = nn.Sequential(*(layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU())))
heads = nn.ModuleList(nn.Linear(256, 10) for _ in range(3))
optimizer = torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=1e-3)


def step(batch):
    features = trunk(batch)
    losses = [head(features).square().mean() for head in heads]
    optimizer.zero_grad()
    if args.fixed:
        sum(losses).backward()
    else:
        for loss in losses:
            loss.backward(retain_graph=True)
    optimizer.step()


train(step, (torch.randn(512, 256) for _ in range(args.steps)))
