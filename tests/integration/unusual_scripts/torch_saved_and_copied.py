# starts: warm
import sys, copy, pickle, io, inspect
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

train(model)
optimizer = torch.optim.Adam(model.parameters())
buffer = io.BytesIO()
torch.save(model, buffer); torch.save(optimizer.state_dict(), buffer)
print(len(pickle.dumps(model)), len(buffer.getvalue()), sorted(vars(model)), sorted(vars(optimizer)))
twin = copy.deepcopy(model)
print(torch.equal(twin[0].weight, model[0].weight), twin(torch.ones(1, 8)).tolist(), model.__class__.__call__ is torch.nn.Module.__call__)
print(inspect.signature(torch.optim.Adam.step), inspect.signature(torch.Tensor.backward), inspect.signature(torch.nn.Module.forward))
print(torch.optim.Adam.__init__.__qualname__, torch.optim.SGD.step.__name__, torch.Tensor.backward.__doc__[:20], torch.utils.data.DataLoader.__iter__.__name__)
