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

compiled = torch.compile(model, backend="eager")
print(round(train(compiled), 6), type(compiled).__name__)
import torch._dynamo
print(sorted(torch._dynamo.utils.counters["graph_break"].items()), torch._dynamo.utils.counters["stats"]["unique_graphs"])
