"""A vocabulary of 50,257, which no tensor core fits; 50,304 = 64 x 786 does.

Rule: odd_shapes. Needs a GPU.
"""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
vocabulary = 50_304 if args.fixed else 50_257
rows = 4096 if torch.cuda.is_available() else 16
head = nn.Linear(768, vocabulary, bias=False).to(device(), torch.bfloat16)
optimizer = torch.optim.SGD(head.parameters(), lr=1e-3)


def step(batch):
    loss = head(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(rows, 768, dtype=torch.bfloat16) for _ in range(args.steps)))
