"""Trains in FP64, the type that its data has in NumPy. Rule: fp64_matmul."""

import numpy as np
import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
samples = torch.from_numpy(np.random.default_rng(0).normal(size=(args.steps, 256, 512)))
if args.fixed:
    samples = samples.float()
model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(4))).to(device(), samples.dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, samples)
