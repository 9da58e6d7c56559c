# starts: warm
import os, torch
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train():
    for _ in range(7):
        optimizer.zero_grad(); loss = model(torch.ones(2, 4)).sum(); loss.backward(); optimizer.step()
    return loss.item()
with torch.no_grad(): before = model(torch.ones(1, 4)).item()
child = os.fork()
if child == 0:
    with torch.no_grad(): print(model(torch.ones(1, 4)).item() == before, flush=True)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), train())
