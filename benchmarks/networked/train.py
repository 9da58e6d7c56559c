"""Plain training on one process, to record: `train.py MODEL`."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.networked.models import LEARNING_RATE, MOMENTUM, make_task

task = make_task(sys.argv[1])
optimizer = torch.optim.SGD(task.model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

while True:
    loss = task.loss(task.model)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
