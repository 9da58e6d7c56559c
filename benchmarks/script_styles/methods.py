"""An autoencoder that is trained by methods other than `forward`."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 64))
        self.decoder = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 784))

    def encode(self, x):
        return self.encoder(x).chunk(2, 1)

    def training_loss(self, x):
        mean, log_variance = self.encode(x)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        penalty = (1 + log_variance - mean**2 - log_variance.exp()).mean()
        return F.mse_loss(self.decoder(code), x) - penalty / 2


model = Autoencoder()
optimizer = torch.optim.Adam(model.parameters())
for _ in range(STEPS):
    batch = torch.randn(128, 784)
    with timed("forward"):
        loss = model.training_loss(batch)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
