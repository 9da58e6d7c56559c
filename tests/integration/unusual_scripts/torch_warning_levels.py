# starts: warm
import torch
model = torch.nn.Linear(8, 1)
model.register_full_backward_hook(lambda module, gradient, out: None)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(9):
    optimizer.zero_grad(); model(torch.ones(4, 8)).sum().backward(); optimizer.step()
