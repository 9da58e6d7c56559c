"""DQN: an environment and a replay buffer in NumPy, a target network."""

import copy

import numpy as np
import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)
rng = np.random.default_rng(0)


class Buffer:
    def __init__(self, size, width):
        self.states = np.zeros((size, width), np.float32)
        self.nexts = np.zeros((size, width), np.float32)
        self.actions = np.zeros(size, np.int64)
        self.rewards = np.zeros(size, np.float32)
        self.at = 0

    def add(self, state, action, reward, following):
        i = self.at % len(self.states)
        self.states[i], self.nexts[i] = state, following
        self.actions[i], self.rewards[i] = action, reward
        self.at += 1

    def sample(self, number):
        picked = rng.integers(0, min(self.at, len(self.states)), number)
        noise = rng.normal(size=(number, self.states.shape[1])).astype(np.float32) * 0.01
        return (self.states[picked] + noise, self.actions[picked], self.rewards[picked], self.nexts[picked])


def environment(state, action):
    for _ in range(12):
        noise = rng.normal(size=state.shape) * 0.05
        state = np.tanh(state @ mixing + 0.1 * action + noise).astype(np.float32)
    return state, float(state.sum())


mixing = rng.normal(size=(64, 64)).astype(np.float32) / 8
online = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 6))
target = copy.deepcopy(online).requires_grad_(False)
optimizer = torch.optim.RMSprop(online.parameters(), 1e-4)
buffer, state = Buffer(20000, 64), rng.normal(size=64).astype(np.float32)
for step in range(STEPS):
    for _ in range(4):
        with torch.no_grad():
            action = int(online(torch.from_numpy(state)).argmax())
        following, reward = environment(state, action)
        buffer.add(state, action, reward, following)
        state = following
    batch = buffer.sample(256)
    states, actions, rewards, nexts = map(torch.from_numpy, batch)
    with timed("forward"):
        values = online(states).gather(1, actions[:, None])[:, 0]
        with torch.no_grad():
            wanted = rewards + 0.99 * target(nexts).max(1).values
        loss = F.smooth_l1_loss(values, wanted)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    if step % 20 == 0:
        target.load_state_dict(online.state_dict())
    end_step()
