"""Gradients of four micro-batches, then one optimizer step, with clipping."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)

model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    for _ in range(4):
        inputs, labels = torch.randn(128, 256), torch.randint(0, 10, (128,))
        with timed("forward"):
            loss = F.cross_entropy(model(inputs), labels) / 4
        with timed("backward"):
            loss.backward()
    with timed("optimizer"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with timed("backward"):
        optimizer.zero_grad()
    end_step()
