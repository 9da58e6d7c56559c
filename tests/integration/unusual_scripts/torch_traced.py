# starts: warm
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
def train(model, steps=9, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
    return loss.item()

import torch.fx
traced = torch.fx.symbolic_trace(model)
scripted = torch.jit.script(model)
recorded = torch.jit.trace(model, torch.ones(4, 8))
exported = torch.export.export(model, (torch.ones(4, 8),)).module()
for made in (traced, scripted, recorded, exported):
    print(type(made).__name__, round(train(made), 6))
print(traced.code, scripted.code)
