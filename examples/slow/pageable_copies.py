"""Copies large batches from pageable memory and waits. Rule: pageable_copies. Needs a GPU."""

import torch
from common import arguments, device, train
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

args = arguments(__doc__)
pin = args.fixed and torch.cuda.is_available()
data = TensorDataset(torch.randn(64 * args.steps, 3, 64, 64))
model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 10)).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    images = batch[0].to(device(), non_blocking=args.fixed)
    loss = model(images).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, DataLoader(data, batch_size=64, pin_memory=pin))
