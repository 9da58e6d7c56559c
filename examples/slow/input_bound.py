"""Reads each sample from a slow disk, in the training loop's own process. Rule: input_bound."""

import time

import torch
from common import arguments, train
from torch import nn
from torch.utils.data import DataLoader, Dataset

args = arguments(__doc__)


class SlowDisk(Dataset):
    def __len__(self):
        return 16 * args.steps

    def __getitem__(self, index):
        time.sleep(0.002)  # a read
        return torch.randn(256)


model = nn.Sequential(nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    for _ in range(4):  # enough to compute that two workers keep up
        loss = model(batch).square().mean()
        loss.backward()
    optimizer.step()
    optimizer.zero_grad()


train(step, DataLoader(SlowDisk(), batch_size=16, num_workers=2 if args.fixed else 0))
