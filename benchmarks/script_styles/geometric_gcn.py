"""A graph network of PyTorch Geometric: messages are scattered."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn
from torch_geometric.nn import GCNConv

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = GCNConv(64, 64), GCNConv(64, 7)

    def forward(self, x, edges):
        return self.second(self.first(x, edges).relu(), edges)


model = Net()
optimizer = torch.optim.Adam(model.parameters())
nodes, labels = torch.randn(1000, 64), torch.randint(0, 7, (1000,))
for _ in range(STEPS):
    batch = torch.randint(0, 1000, (2, 8000))
    with timed("forward"):
        loss = F.cross_entropy(model(nodes, batch), labels)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
