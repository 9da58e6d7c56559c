# starts: warm
import warnings; warnings.simplefilter("ignore")
import torch
torch.manual_seed(0)
class Double(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return 2 * x
    @staticmethod
    def backward(context, gradient):
        return 2 * gradient
class Layer(torch.nn.Linear):
    def forward(self, x): return Double.apply(super().forward(x))
model = torch.nn.Sequential(Layer(8, 8), torch.nn.ReLU(), Layer(8, 1))
calls = []
model[0].register_forward_pre_hook(lambda module, inputs: calls.append("pre"))
model[0].register_forward_hook(lambda module, inputs, output: calls.append("forward"))
model[0].register_full_backward_hook(lambda module, gradient, out: calls.append("backward"))
model[0].weight.register_hook(lambda gradient: calls.append("tensor"))
model[0].weight.register_post_accumulate_grad_hook(lambda parameter: calls.append("accumulated"))
optimizer = torch.optim.AdamW(model.parameters())
optimizer.register_step_pre_hook(lambda *_: calls.append("step"))
for _ in range(9):
    calls.clear()
    optimizer.zero_grad()
    loss = model(torch.ones(4, 8)).sum()
    loss.backward()
    optimizer.step()
    print(calls)
print(loss.item(), len(model[0]._forward_hooks), len(model._forward_hooks), len(optimizer._optimizer_step_pre_hooks))
