"""An embedding whose gradient is as large as its table, for 64 rows. Rule: forward_backward."""

import torch
from common import arguments, train
from torch import nn

args = arguments(__doc__)
table = nn.Embedding(200_000, 64, sparse=args.fixed)
head = nn.Linear(64, 10)
optimizer = torch.optim.SGD([*table.parameters(), *head.parameters()], lr=1e-3)


def step(rows):
    loss = head(table(rows)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randint(200_000, (64,)) for _ in range(args.steps)))
