"""A vision transformer."""

import torch
from hand_timers import STEPS, end_step, timed
from transformers import ViTConfig, ViTForImageClassification

torch.manual_seed(0)
config = ViTConfig(
    hidden_size=128,
    num_hidden_layers=3,
    num_attention_heads=4,
    intermediate_size=256,
    image_size=64,
    num_labels=10,
)
model = ViTForImageClassification(config)
optimizer = torch.optim.AdamW(model.parameters())
labels = torch.arange(8)
for _ in range(STEPS):
    batch = torch.randn(8, 3, 64, 64)
    with timed("forward"):
        loss = model(batch, labels=labels).loss
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
