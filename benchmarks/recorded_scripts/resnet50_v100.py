"""ResNet-50 as in the trace of a V100: 32 images of 224 pixels, SGD with momentum."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.gpu.networks.resnet import ResNet50

model = ResNet50(classes=1000)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
for _ in range(4):
    images, labels = torch.randn(32, 3, 224, 224), torch.randint(1000, (32,))
    optimizer.zero_grad()
    F.cross_entropy(model(images), labels).backward()
    optimizer.step()
