"""A physics-informed network: derivatives with respect to inputs are part of the loss."""

import torch
from hand_timers import STEPS, end_step, time_calls, timed
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (2, 128, 128, 128, 1)
        self.layers = nn.ModuleList(map(nn.Linear, widths[:-1], widths[1:]))

    def forward(self, x, t):
        h = torch.cat([x, t], 1)
        for layer in self.layers[:-1]:
            h = torch.tanh(layer(h))
        return self.layers[-1](h)


def derivative(y, x):
    return torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)[0]


def residual(x, t):
    u = net(x, t)
    u_x = derivative(u, x)
    return derivative(u, t) + u * u_x - 0.01 * derivative(u_x, x)


time_calls(torch.autograd, "grad", "backward")
torch.manual_seed(0)
net = Net()
optimizer = torch.optim.Adam(net.parameters(), 1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1000)
for _ in range(STEPS):
    with timed("forward"):
        x, t = torch.rand(512, 1, requires_grad=True), torch.rand(512, 1, requires_grad=True)
        inside = residual(x, t).square().mean()
        start = torch.rand(128, 1)
        at_start = net(start, torch.zeros_like(start)) + torch.sin(3.14159 * start)
        at_start = at_start.square().mean()
        loss = inside + at_start
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
        scheduler.step()
    end_step()
