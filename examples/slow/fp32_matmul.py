"""Multiplies large matrices in FP32; autocast does in 16 bits. Rule: fp32_matmul. Needs a GPU."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
width = 4096 if torch.cuda.is_available() else 64
model = nn.Sequential(*(nn.Linear(width, width) for _ in range(4))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    with torch.autocast(device(), torch.bfloat16, enabled=args.fixed):
        loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(width, width) for _ in range(args.steps)))
