"""Convolutions in bfloat16 autocast, on batches of a DataLoader."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)

model = nn.Sequential(
    nn.Conv2d(3, 16, 3, 2),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 32, 3, 2),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
optimizer = torch.optim.AdamW(model.parameters())
data = TensorDataset(torch.randn(16 * STEPS, 3, 32, 32), torch.randint(0, 10, (16 * STEPS,)))
batches = iter(DataLoader(data, batch_size=16, shuffle=True))
for _ in range(STEPS):
    with timed("data"):
        images, labels = next(batches)
    with timed("forward"), torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(model(images), labels)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
