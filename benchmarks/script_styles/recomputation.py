"""A transformer that recomputes its layers in the backward pass."""

import torch
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch.utils.checkpoint import checkpoint

torch.manual_seed(0)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True) for _ in range(3)
        )

    def forward(self, x):
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return x


model = Encoder()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    batch = torch.randn(8, 32, 64)
    with timed("forward"):
        loss = model(batch).square().mean()
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
