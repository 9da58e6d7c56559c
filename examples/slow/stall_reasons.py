"""Shuffles numbers one by one, where whole rows would do: each is fetched from a line of its own.

Rule: stall_reasons, in contexts with samples of instructions:
    stepscope run --contexts --stalls stall_reasons.py

Needs a CUDA device, and permission to sample it (docs/guide/contexts.md, "Stalls").
"""

import torch
from common import arguments, require_cuda, train
from torch import nn

args = arguments(__doc__)
require_cuda()
size = 8192
layer = nn.Linear(size, size, bias=False, device="cuda", dtype=torch.float16)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)


def shuffled(batch):
    if args.fixed:  # neighbors in memory stay together
        return batch[torch.randperm(size, device="cuda")]
    return batch.flatten()[order].view_as(batch)


def step(batch):
    loss = layer(shuffled(batch)).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()  # so that the time printed is that of the device


order = torch.randperm(size * size, device="cuda")
batch = torch.randn(size, size, device="cuda", dtype=torch.float16)
train(step, (batch for _ in range(args.steps)))
