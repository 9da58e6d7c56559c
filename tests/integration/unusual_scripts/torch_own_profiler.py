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

from torch.profiler import ProfilerActivity, profile, record_function, schedule
seen = []
def ready(profiler): seen.append(sorted({event.key for event in profiler.key_averages() if event.key in ("mine", "aten::linear")}))
with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=1), on_trace_ready=ready) as profiler:
    for _ in range(5):
        with record_function("mine"): train(model, 1)
        profiler.step()
print(seen)
