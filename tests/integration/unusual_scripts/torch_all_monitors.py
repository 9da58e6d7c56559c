import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=12):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
import sys
monitoring = getattr(sys, "monitoring", None)
if monitoring:
    for tool in range(6): monitoring.use_tool_id(tool, f"mine {tool}")
train(16)
if monitoring: print([monitoring.get_tool(tool) for tool in range(6)])
