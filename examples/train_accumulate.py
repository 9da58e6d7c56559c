"""Train a small recurrent tagger, adding up the gradients of several batches for each step."""

import argparse

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, words: int = 500, tags: int = 12, width: int = 64):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.lstm = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.tag = nn.Linear(2 * width, tags)

    def forward(self, words):
        states, _ = self.lstm(self.embedding(words))
        return self.tag(states)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=4)
    args = parser.parse_args()

    torch.manual_seed(0)
    tagger = Tagger()
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(tagger.parameters(), lr=1e-3)

    for step in range(args.steps):
        for _ in range(args.accumulate):
            words = torch.randint(500, (args.batch, 20))
            scores = tagger(words)
            loss = criterion(scores.flatten(0, 1), (words % 12).flatten())
            (loss / args.accumulate).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 5 == 0:
            print(f"step {step:3}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
