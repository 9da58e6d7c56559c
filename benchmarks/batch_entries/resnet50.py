"""ResNet-50 on small images, as SKYLINE's provider functions."""

import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.gpu.networks.resnet import ResNet50

SIZE, CLASSES = 96, 1000


def stepscope_model_provider():
    torch.manual_seed(0)
    return ResNet50(classes=CLASSES)


def stepscope_input_provider(batch_size=16):
    images = torch.randn(batch_size, 3, SIZE, SIZE)
    return images, torch.randint(CLASSES, (batch_size,))


def stepscope_iteration_provider(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def iteration(images, labels):
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return iteration
