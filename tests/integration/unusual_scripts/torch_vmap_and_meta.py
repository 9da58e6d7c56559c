# starts: warm
import torch
from torch.func import functional_call, grad, vmap
torch.manual_seed(0)
model = torch.nn.Linear(4, 1)
parameters = dict(model.named_parameters())
def loss(values, x): return functional_call(model, values, (x,)).sum()
for _ in range(8):
    gradients = vmap(grad(loss), in_dims=(None, 0))(parameters, torch.ones(5, 4))
    parameters = {name: value.detach() - 0.1 * gradients[name].mean(0) for name, value in parameters.items()}
print(parameters["weight"].tolist())
with torch.device("meta"): shape = torch.nn.Linear(1000, 1000)
print(shape.weight.device, torch.utils.checkpoint.checkpoint(model, torch.ones(1, 4), use_reentrant=False).shape)
