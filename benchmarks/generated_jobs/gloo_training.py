"""A DDP job on CPUs whose one rank is slow: `gloo_training.py FAULT RANK`."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

BATCH, WIDTH, STEPS = 64, 512, 16
FAULT, SLOW = sys.argv[1], int(sys.argv[2])


class Samples(Dataset):
    """Random rows; one rank's come late if that is the fault."""

    def __init__(self, sleep_s: float) -> None:
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return 10 * BATCH * STEPS

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.sleep_s:
            time.sleep(self.sleep_s)
        return torch.full((WIDTH,), row / 1e4), torch.zeros(WIDTH)


def augment() -> float:
    """Python that takes some 30 ms."""
    return sum(number**0.5 for number in range(300_000))


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    slow = int(os.environ["RANK"]) == SLOW
    batch = 4 * BATCH if slow and FAULT == "uneven_batch" else BATCH
    loader = DataLoader(Samples(5e-4 if slow and FAULT == "slow_loader" else 0.0), batch)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)]
    model = DistributedDataParallel(nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (inputs, targets) in enumerate(loader):
        if step == STEPS:
            break
        optimizer.zero_grad()
        if slow and FAULT == "python":
            augment()
        loss = nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()


main()
