"""Checks every gradient for NaN, as was needed once. Rule: anomaly_detection."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
torch.autograd.set_detect_anomaly(not args.fixed)
layers = (nn.Sequential(nn.Linear(256, 256), nn.GELU()) for _ in range(6))
model = nn.Sequential(*layers).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)


def step(batch):
    loss = model(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(64, 256) for _ in range(args.steps)))
