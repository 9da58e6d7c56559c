"""Sends all gradients after each backward; fixed, after each 32nd. Rule: exposed_communication.

torchrun --no-python --nproc-per-node 2 stepscope run exposed_communication.py
"""

import torch
import torch.distributed as dist
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def step(_):
    for _ in range(32 if args.fixed else 1):
        model(torch.randn(64, 512, device=device())).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


train(step, range(args.steps))
dist.destroy_process_group()
