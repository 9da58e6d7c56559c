"""FSDP2 (`fully_shard`) over Gloo, one process."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

torch.manual_seed(0)

distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.Linear(512, 10))
for layer in model:
    if isinstance(layer, nn.Linear):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
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
