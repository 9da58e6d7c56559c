"""DistributedDataParallel over Gloo, one process."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(0)

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10)))
optimizer = torch.optim.AdamW(model.parameters())
labels = torch.randint(0, 10, (128,))
for _ in range(STEPS):
    batch = torch.randn(128, 256)
    with timed("forward"):
        loss = F.cross_entropy(model(batch), labels)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
distributed.destroy_process_group()
