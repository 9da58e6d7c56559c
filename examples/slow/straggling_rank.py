"""Rank 1 gets batches twelve times as large; fixed, both get the same. Rule: straggling_rank.

torchrun --no-python --nproc-per-node 2 stepscope run straggling_rank.py
"""

import torch
import torch.distributed as dist
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
uneven = [1, 12] if not args.fixed else [6, 6]
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)


def step(_):
    for _ in range(uneven[dist.get_rank()]):
        model(torch.randn(512, 512, device=device())).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    optimizer.zero_grad()


train(step, range(args.steps))
dist.destroy_process_group()
