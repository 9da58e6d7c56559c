# starts: warm
import torch
class Fails(torch.autograd.Function):
    @staticmethod
    def forward(context, x): return x * 1
    @staticmethod
    def backward(context, gradient): raise ArithmeticError("in backward")
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(9):
    optimizer.zero_grad()
    output = model(torch.ones(2, 4))
    (Fails.apply(output) if step == 6 else output).sum().backward()
    optimizer.step()
