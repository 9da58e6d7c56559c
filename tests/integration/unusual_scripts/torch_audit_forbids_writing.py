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
train(8)
def forbid(event, arguments):
    if event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wax+"):
        raise PermissionError("no writing")
    if event in ("os.rename", "os.mkdir", "tempfile.mkstemp"): raise PermissionError("no " + event)
sys.addaudithook(forbid)
train(8)
print("done")
