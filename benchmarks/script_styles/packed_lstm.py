"""A packed LSTM on sequences of different lengths."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

torch.manual_seed(0)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(500, 64)
        self.lstm, self.head = nn.LSTM(64, 64, batch_first=True), nn.Linear(64, 12)

    def forward(self, words, lengths):
        packed = pack_padded_sequence(self.embedding(words), lengths, batch_first=True, enforce_sorted=False)
        return self.head(pad_packed_sequence(self.lstm(packed)[0], batch_first=True)[0])


model = Tagger()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):
    lengths = torch.randint(5, 20, (16,))
    words = torch.randint(0, 500, (16, int(lengths.max())))
    with timed("forward"):
        scores = model(words, lengths)
        loss = F.cross_entropy(scores.flatten(0, 1), torch.zeros(scores[..., 0].numel()).long())
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
