"""A ResNet-18 on random images: `resnet.py [BATCH] [STEPS]`."""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
from train_resnet import ResNet18

BATCH, STEPS = (int(value) for value in (*sys.argv[1:], *(8, 10_000)[len(sys.argv) - 1 :]))

torch.manual_seed(0)
model = ResNet18(width=32).train()
criterion = torch.nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

for _ in range(STEPS):
    images, labels = torch.randn(BATCH, 3, 96, 96), torch.randint(100, (BATCH,))
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
