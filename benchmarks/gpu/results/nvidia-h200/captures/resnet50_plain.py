"""Train resnet50 on synthetic data, in FP32."""

import torch
from benchmarks.gpu.drawn import drawn_batches
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.training import pinned

torch.manual_seed(0)
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

spec = MODELS["resnet50"]
samples = spec.samples(False)
with torch.device("cuda"):
    model = spec.build(False).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
batches = iter([pinned(spec.batch(samples, False), "cuda")] * 32)

for _ in range(32):
    host = next(batches)
    batch = {name: tensor.to("cuda", non_blocking=True) for name, tensor in host.items()}
    optimizer.zero_grad()
    loss = spec.loss(model, batch)
    loss.backward()
    optimizer.step()
print("loss", loss.item())
