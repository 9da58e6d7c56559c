# starts: warm
import io
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

from torch import package
buffer = io.BytesIO()
with package.PackageExporter(buffer) as exporter:
    exporter.extern(["torch", "torch.**"])
    exporter.save_source_string("packed", "def twice(x): return 2 * x\n")
    exporter.save_pickle("model", "model.pkl", model)
buffer.seek(0)
importer = package.PackageImporter(buffer)
loaded = importer.load_pickle("model", "model.pkl")
print(train(loaded), importer.import_module("packed").twice(4))
