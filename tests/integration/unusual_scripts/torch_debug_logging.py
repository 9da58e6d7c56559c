import torch
model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
def train(steps=12):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
import logging, sys
logging.basicConfig(level=1, stream=sys.stdout, format="%(name)s %(levelname)s %(message)s")
logging.captureWarnings(True)
train(16)
print(logging.getLogger().handlers.__len__(), [n for n in logging.root.manager.loggerDict if "stepscope" in n])
