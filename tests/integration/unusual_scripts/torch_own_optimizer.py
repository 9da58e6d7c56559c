# starts: warm
import torch
torch.manual_seed(0)
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {"lr": 0.1})
    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad(): loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]: parameter.sub_(group["lr"] * parameter.grad)
        return loss
model = torch.nn.Linear(4, 1)
optimizer = Mine(model.parameters())
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2)
def closure():
    optimizer.zero_grad(); loss = model(torch.ones(2, 4)).square().sum(); loss.backward()
    return loss
for _ in range(9):
    print(optimizer.step(closure).item(), schedule.get_last_lr()); schedule.step()
lbfgs = torch.optim.LBFGS(model.parameters(), max_iter=3)
for _ in range(4): lbfgs.step(closure)
print(closure().item(), len(lbfgs.state))
