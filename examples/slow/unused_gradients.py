"""Trains a discriminator on samples that are not detached. Rule: unused_gradients."""

from itertools import pairwise

import torch
from common import arguments, device, train
from torch import nn

args = arguments(__doc__)


def net(*sizes):
    layers = [(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*(part for layer in layers for part in layer))


generator = net(64, 512, 512, 512).to(device())
critic = net(512, 256, 64, 1).to(device())
of_generator = torch.optim.SGD(generator.parameters(), lr=1e-4)
of_critic = torch.optim.SGD(critic.parameters(), lr=1e-4)


def step(noise):
    made = generator(noise.to(device()))
    loss = critic(made.detach() if args.fixed else made).mean()
    of_critic.zero_grad()
    loss.backward()
    of_critic.step()
    of_generator.zero_grad()
    critic(generator(noise.to(device()))).mean().neg().backward()
    of_generator.step()


train(step, (torch.randn(128, 64) for _ in range(args.steps)))
