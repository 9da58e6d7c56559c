"""Sends all gradients in each step; fixed, averages the weights after each tenth.

torchrun --no-python --nproc-per-node 2 stepscope run exposed_communication.py
Rule: exposed_communication.
"""

import torch
import torch.distributed as dist
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def average(tensors):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= dist.get_world_size()


def step(number):
    model(torch.randn(64, 512, device=device())).square().mean().backward()
    if not args.fixed:
        average(parameter.grad for parameter in model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    if args.fixed and number % 10 == 9:  # local SGD
        average(parameter.data for parameter in model.parameters())


train(step, range(args.steps))
dist.destroy_process_group()
