"""torch.compile of a loss function."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


model = nn.Sequential(*(Block(128) for _ in range(3)), nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters())


@torch.compile
def loss_of(inputs, labels):
    return F.cross_entropy(model(inputs), labels)


for _ in range(STEPS):
    inputs, labels = torch.randn(256, 128), torch.randint(0, 10, (256,))
    with timed("forward"):
        loss = loss_of(inputs, labels)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
