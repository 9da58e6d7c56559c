# starts: warm
# environment: CUBLAS_WORKSPACE_CONFIG=:4096:8
import warnings
warnings.simplefilter("error")
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

torch.use_deterministic_algorithms(True)
print(train(model), torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), torch.rand(2).tolist())
