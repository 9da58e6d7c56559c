"""Pads every text to the longest of all; the longest of the batch is enough. Rule: padding."""

import torch
import torch.nn.functional as F
from common import arguments, device, train
from torch import nn
from torch.utils.data import DataLoader

args = arguments(__doc__)
WORDS, LONGEST = 1000, 256
texts = [torch.randint(1, WORDS, (length,)) for length in torch.randint(48, 64, (8 * args.steps,)).tolist()]


def padded(batch):
    longest = max(map(len, batch)) if args.fixed else LONGEST
    return torch.stack([F.pad(text, (0, longest - len(text))) for text in batch])


layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0, batch_first=True)
model = nn.Sequential(nn.Embedding(WORDS, 64), layer, nn.Linear(64, WORDS)).to(device())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step(batch):
    batch = batch.to(device())
    optimizer.zero_grad()
    F.cross_entropy(model(batch).flatten(0, 1), batch.flatten(), ignore_index=0).backward()
    optimizer.step()


train(step, DataLoader(texts, batch_size=8, collate_fn=padded))
