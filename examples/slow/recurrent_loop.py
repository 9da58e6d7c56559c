"""Calls an LSTM cell per element of a sequence; nn.LSTM takes it whole. Rule: recurrent_loop."""

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)
cell = nn.LSTMCell(32, 64).to(device())
whole = nn.LSTM(32, 64, batch_first=True).to(device())
optimizer = torch.optim.SGD([*cell.parameters(), *whole.parameters()], lr=1e-3)


def run(sequence):
    if args.fixed:
        return whole(sequence)[0]
    state, outputs = None, []
    for element in sequence.unbind(1):
        state = cell(element, state)
        outputs.append(state[0])
    return torch.stack(outputs, 1)


def step(batch):
    loss = run(batch.to(device())).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(16, 100, 32) for _ in range(args.steps)))
