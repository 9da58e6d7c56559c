"""MoCo: two views, a momentum encoder, a queue of negatives."""

import copy

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch.utils.data import DataLoader, Dataset

torch.manual_seed(0)


class Views(Dataset):
    def __len__(self):
        return 32 * STEPS

    def __getitem__(self, index):
        image = torch.full((3, 32, 32), index % 7 / 7)
        return image + torch.randn(3, 32, 32), image.flip(-1) + torch.randn(3, 32, 32)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 32, 3, 2),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, 2),
            nn.BatchNorm2d(64),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.head = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))

    def forward(self, x):
        return F.normalize(self.head(self.body(x)), dim=1)


query = Encoder()
key = copy.deepcopy(query).requires_grad_(False)
queue = F.normalize(torch.randn(64, 2048), dim=0)
pointer = 0
optimizer = torch.optim.SGD(query.parameters(), 0.03, momentum=0.9, weight_decay=1e-4)
loader = iter(DataLoader(Views(), batch_size=32))
for _ in range(STEPS):
    with timed("data"):
        one, two = next(loader)
    with timed("forward"):
        q = query(one)
    with torch.no_grad():
        for a, b in zip(query.parameters(), key.parameters(), strict=True):
            b.mul_(0.99).add_(a, alpha=0.01)
    with timed("forward"):
        with torch.no_grad():
            k = key(two)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ queue.clone()], 1) / 0.07
        loss = F.cross_entropy(logits, torch.zeros(len(q), dtype=torch.long))
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    queue[:, pointer : pointer + 32] = k.T
    pointer = (pointer + 32) % 2048
    end_step()
