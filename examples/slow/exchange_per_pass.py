"""Accumulates four batches and exchanges gradients after each; fixed, after the last alone.

torchrun --no-python --nproc-per-node 2 stepscope run exchange_per_pass.py
Rule: exchange_per_pass.
"""

import contextlib

import torch
import torch.distributed as dist
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
layers = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device())
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def accumulate(exchange):
    with contextlib.nullcontext() if exchange else model.no_sync():
        model(torch.randn(64, 512, device=device())).square().mean().backward()


def step(_):
    for batch in range(4):
        accumulate(exchange=batch == 3 or not args.fixed)
    optimizer.step()
    optimizer.zero_grad()


train(step, range(args.steps))
dist.destroy_process_group()
