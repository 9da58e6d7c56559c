"""Train a small GAN: two models, two optimizers, several critic steps for each generator step."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn


def perceptron(inputs: int, outputs: int, width: int = 128) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, width), nn.LeakyReLU(0.2), nn.Linear(width, width), nn.LeakyReLU(0.2),
        nn.Linear(width, outputs),
    )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--critic-steps", type=int, default=1)
    args = parser.parse_args()

    torch.manual_seed(0)
    generator = perceptron(16, 2)
    critic = perceptron(2, 1)
    generator_optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    critic_optimizer = torch.optim.RMSprop(critic.parameters(), lr=1e-3)

    for step in range(args.steps):
        for _ in range(args.critic_steps):
            real = torch.randn(args.batch, 2) * 0.2 + 1
            fake = generator(torch.randn(args.batch, 16)).detach()
            critic_loss = F.softplus(critic(fake)).mean() + F.softplus(-critic(real)).mean()
            critic_optimizer.zero_grad()
            critic_loss.backward()
            critic_optimizer.step()

        fake = generator(torch.randn(args.batch, 16))
        generator_loss = F.softplus(-critic(fake)).mean()
        generator_optimizer.zero_grad()
        generator_loss.backward()
        generator_optimizer.step()
        if step % 5 == 0:
            print(f"step {step:3}  critic {critic_loss:.3f}  generator {generator_loss:.3f}")


if __name__ == "__main__":
    main()
