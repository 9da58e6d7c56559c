"""Updates 80 small weights one after the other; fused=True does all at once.

Rule: optimizer_loop.
"""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(40))).to(device())
how = {"fused": True} if args.fixed else {"foreach": False}
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, **how)


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(16, 32) for _ in range(args.steps)))
