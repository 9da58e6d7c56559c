"""accelerate: prepared model, gradients accumulated over two batches."""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 10))
data = TensorDataset(torch.randn(128 * STEPS, 256), torch.randint(0, 10, (128 * STEPS,)))
model, optimizer, loader = accelerator.prepare(
    model, torch.optim.AdamW(model.parameters()), DataLoader(data, batch_size=64)
)
batches = iter(loader)
for _ in range(STEPS):
    for _ in range(2):
        with timed("data"):
            inputs, labels = next(batches)
        with accelerator.accumulate(model):
            with timed("forward"):
                loss = F.cross_entropy(model(inputs), labels)
            with timed("backward"):
                accelerator.backward(loss)
            with timed("optimizer"):
                optimizer.step()
            with timed("backward"):
                optimizer.zero_grad()
    end_step()
