"""Loads with four workers for each core. Rule: too_many_workers."""

import os

import torch
from common import arguments, train
from torch import nn
from torch.utils.data import DataLoader, Dataset

args = arguments(__doc__)


class Drawn(Dataset):
    """Samples that take a core some milliseconds to make."""

    def __len__(self):
        return 8 * args.steps

    def __getitem__(self, index):
        return torch.randn(128, 1024).sort().values.mean(0)


model = nn.Sequential(nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


cores = len(os.sched_getaffinity(0))
train(step, DataLoader(Drawn(), batch_size=8, num_workers=cores if args.fixed else 4 * cores))
