"""PPO on random observations: a rollout, then four minibatches, each with a step."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 6))
        self.critic = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))

    def act(self, observed):
        chosen = torch.distributions.Categorical(logits=self.actor(observed))
        action = chosen.sample()
        return action, chosen.log_prob(action), self.critic(observed)

    def judge(self, observed, action):
        chosen = torch.distributions.Categorical(logits=self.actor(observed))
        return chosen.log_prob(action), chosen.entropy(), self.critic(observed)


agent = Agent()
optimizer = torch.optim.Adam(agent.parameters(), 3e-4)


def rollout():
    with torch.no_grad():
        seen = torch.randn(32, 16, 32)
        return seen.flatten(0, 1), [torch.cat(part) for part in zip(*map(agent.act, seen), strict=True)]


for step in range(STEPS):
    if step % 4 == 0:
        seen, (actions, old, values) = rollout()
        returns = torch.randn(len(seen))
        order = torch.randperm(len(seen)).chunk(4)
    rows = order[step % 4]
    with timed("forward"):
        new, entropy, value = agent.judge(seen[rows], actions[rows])
        ratio = (new - old[rows]).exp()
        gain = returns[rows] - values[rows, 0]
        clipped = torch.min(ratio * gain, ratio.clamp(0.8, 1.2) * gain).mean()
        loss = F.mse_loss(value[:, 0], returns[rows]) - clipped - 0.01 * entropy.mean()
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
    end_step()
