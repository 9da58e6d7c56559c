"""A moving average of the weights, logging and an evaluation in every step."""

import copy

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)

layers = [layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.ReLU())]
model = nn.Sequential(*layers)
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters())
held_out, history = torch.randn(256, 256), []


@torch.no_grad()
def update_average():
    for mean, weight in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(weight, 0.01)


def evaluate():
    model.eval()
    with torch.no_grad():
        history.append(F.mse_loss(model(held_out), held_out).item())
    model.train()


for _ in range(STEPS):
    batch = torch.randn(128, 256)
    with timed("forward"):
        loss = F.mse_loss(model(batch), batch)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    update_average()
    history.append(loss.item())
    with timed("evaluation"):
        evaluate()
    end_step()
