"""A small UNet of diffusers, trained to predict noise."""

import torch
import torch.nn.functional as F
from diffusers import DDPMScheduler, UNet2DModel
from hand_timers import STEPS, end_step, timed

torch.manual_seed(0)
model = UNet2DModel(
    sample_size=16,
    in_channels=3,
    out_channels=3,
    layers_per_block=1,
    block_out_channels=(16, 32),
    norm_num_groups=4,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
)
scheduler = DDPMScheduler()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(STEPS):
    images, noise = torch.randn(4, 3, 16, 16), torch.randn(4, 3, 16, 16)
    times = torch.randint(0, 1000, (4,))
    noisy = scheduler.add_noise(images, noise, times)
    with timed("forward"):
        loss = F.mse_loss(model(noisy, times).sample, noise)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
