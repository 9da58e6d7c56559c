"""A small model: two linear layers over 64 places, and a head."""

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.body(x)
        return self.head(x.mean(1))


def stepscope_model_provider():
    return Net()


def stepscope_input_provider(batch_size=32):
    return torch.randn(batch_size, 64, 64), torch.randint(10, (batch_size,))


def stepscope_iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def iteration(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return iteration
