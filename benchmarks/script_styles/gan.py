"""A GAN: two models, two optimizers, three passes."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)

generator = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh())
critic = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
for_generator = torch.optim.Adam(generator.parameters(), 2e-4)
for_critic = torch.optim.Adam(critic.parameters(), 2e-4)


def loss_of(scores, real):
    return F.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


for _ in range(STEPS):
    real = torch.randn(128, 784)
    with timed("forward"):
        fake = generator(torch.randn(128, 64)).detach()
        loss = loss_of(critic(real), True) + loss_of(critic(fake), False)
    with timed("backward"):
        for_critic.zero_grad()
        loss.backward()
    with timed("optimizer"):
        for_critic.step()
    with timed("forward"):
        loss = loss_of(critic(generator(torch.randn(128, 64))), True)
    with timed("backward"):
        for_generator.zero_grad()
        loss.backward()
    with timed("optimizer"):
        for_generator.step()
    end_step()
