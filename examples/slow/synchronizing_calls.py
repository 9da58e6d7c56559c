"""Counts hits one by one with .item(); a sum does it at once. Rule: synchronizing_calls."""

import torch
import torch.nn.functional as F
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
model = nn.Linear(64, 10).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
hits = torch.zeros((), device=device())


def count_hits(scores, labels):
    if args.fixed:
        hits.add_((scores.argmax(1) == labels).sum())
        return
    for row, label in zip(scores, labels, strict=True):
        if row.argmax().item() == label.item():
            hits.add_(1)


def step(batch):
    labels = torch.randint(10, (256,)).to(device())
    scores = model(batch.to(device()))
    loss = F.cross_entropy(scores, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    count_hits(scores.detach(), labels)


train(step, (torch.randn(256, 64) for _ in range(args.steps)))
