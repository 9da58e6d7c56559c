# starts: warm
import gc, sys, weakref
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

print(train(model), sys.getrefcount(model), sys.getrefcount(model[0].weight), len(gc.callbacks))
model_reference, weight = weakref.ref(model), weakref.ref(model[0].weight)
gc.disable()
del model
print(model_reference() is None, weight() is None)
