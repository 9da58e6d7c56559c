# starts: warm
import torch
from torch import nn
torch.manual_seed(0)
class Slotted(nn.Module):
    def __init__(self):
        super().__init__(); self.layer = nn.Linear(4, 4)
    def __getattr__(self, name):
        if name == "magic": return 5
        return super().__getattr__(name)
    def __call__(self, x): return super().__call__(x) * self.magic
    def __eq__(self, other): raise RuntimeError("modules are not compared")
    def __hash__(self): return 1
    def __len__(self): return 0
    def __bool__(self): raise RuntimeError("no truth")
    def forward(self, x): return self.layer(x)
class Meta(type):
    def __call__(cls, *arguments): print("made", cls.__name__); return super().__call__(*arguments)
class Made(nn.Linear, metaclass=Meta): pass
class Lazy(nn.Module):
    def __init__(self):
        super().__init__(); self.inner = nn.LazyLinear(2)
    def forward(self, x): return self.inner(x)
models = [Slotted(), Made(4, 4), Lazy()]
models[2](torch.ones(1, 4))
optimizer = torch.optim.SGD([parameter for model in models for parameter in model.parameters()], lr=0.01)
for _ in range(8):
    optimizer.zero_grad()
    loss = sum(model(torch.ones(2, 4)).sum() for model in models)
    loss.backward()
    optimizer.step()
print(loss.item())
