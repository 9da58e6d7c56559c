"""A distilled student: the teacher runs without gradients in every step."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from torch import nn

torch.manual_seed(0)

teacher = nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 10)).eval()
student = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(student.parameters(), lr=0.1, momentum=0.9)
for _ in range(STEPS):
    batch = torch.randn(256, 128)
    with timed("forward"):
        with torch.no_grad():
            goal = teacher(batch).softmax(1)
        loss = F.cross_entropy(student(batch), goal)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        optimizer.step()
    end_step()
