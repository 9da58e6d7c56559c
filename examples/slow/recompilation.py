"""Every batch has another size, and each is compiled anew. Rule: recompilation.

`aot_eager` compiles without a C++ compiler; the same happens with any other backend.
"""

import torch
from common import arguments, train
from torch import nn

args = arguments(__doc__)
layer = nn.Linear(32, 32)
model = torch.compile(layer, backend="aot_eager", dynamic=args.fixed)
optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
torch._dynamo.config.recompile_limit = 1000


def step(batch):
    loss = model(batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


train(step, (torch.randn(8 + number, 32) for number in range(args.steps)))
