"""LBFGS, whose step runs a closure several times."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)

model = nn.Sequential(nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 1))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, tolerance_grad=0, tolerance_change=0)


def closure():
    with timed("backward"):
        optimizer.zero_grad()
    with timed("forward"):
        loss = F.mse_loss(model(inputs), targets)
    with timed("backward"):
        loss.backward()
    return loss


for _ in range(STEPS):
    inputs, targets = torch.randn(256, 64), torch.randn(256, 1)
    with timed("optimizer"):
        optimizer.step(closure)
    end_step()
