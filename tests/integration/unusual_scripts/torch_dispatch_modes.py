# starts: warm
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.overrides import TorchFunctionMode
torch.manual_seed(0)
model, names, functions = torch.nn.Linear(4, 2), [], []
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
class Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), more=None):
        names.append(str(function)); return function(*arguments, **(more or {}))
class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, arguments=(), more=None):
        functions.append(getattr(function, "__name__", "?")); return function(*arguments, **(more or {}))
with Watch(), Functions():
    for _ in range(8):
        names.clear(); functions.clear()
        optimizer.zero_grad(); model(torch.ones(2, 4)).sum().backward(); optimizer.step()
print(names, functions)
