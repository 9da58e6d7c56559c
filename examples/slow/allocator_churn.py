"""Makes a new tensor of 32 MiB in each of its operations; in place it makes none.

Rule: allocator_churn; on a CPU record with --memory.
"""

import torch
from common import arguments, device, train

args = arguments(__doc__)
weight = torch.ones(1, device=device(), requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=1e-3)
noise = torch.randn(8 << 20, device=device())


def augmented(x):
    for _ in range(3):
        x = x.mul_(0.9).add_(0.1).clamp_(-3, 3) if args.fixed else (x * 0.9 + 0.1).clamp(-3, 3)
    if device() == "cuda" and not args.fixed:
        torch.cuda.empty_cache()
    return x


def step(_):
    loss = augmented(noise).mean() * weight
    optimizer.zero_grad()
    loss.sum().backward()
    optimizer.step()


train(step, range(args.steps))
