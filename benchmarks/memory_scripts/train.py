"""Trains a small model for a few steps: python train.py MODEL BATCH [CHANGE].

CHANGE is `checkpoint:GLOB` (of module paths), `autocast`, `compile` or `stateless` (SGD instead of AdamW).
"""

import sys
from contextlib import nullcontext
from fnmatch import fnmatchcase

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS, LENGTH, WIDTH, CLASSES = 1000, 64, 128, 100


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.merge = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(b, t, 3, 4, d // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.merge(mixed.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.narrow(F.gelu(self.wide(self.norm_2(x)))))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x):
        places = torch.arange(x.shape[1])
        return self.head(self.norm(self.blocks(self.words(x) + self.places(places)))).flatten(0, 1)

    @staticmethod
    def data(batch):
        words = torch.randint(0, WORDS, (batch, LENGTH + 1))
        return words[:, :-1], words[:, 1:].flatten()


class Bottleneck(nn.Module):
    def __init__(self, width, inner, out, stride=1):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(width, inner, 1, bias=False), nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3, self.bn3 = nn.Conv2d(inner, out, 1, bias=False), nn.BatchNorm2d(out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut = None
        if stride != 1 or width != out:
            self.shortcut = nn.Sequential(nn.Conv2d(width, out, 1, stride, bias=False), nn.BatchNorm2d(out))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        return self.relu(out + (self.shortcut(x) if self.shortcut else x))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 32, 7, 2, 3, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, 2, 1),
        )
        widths = [
            (32, 16, 64, 1),
            (64, 16, 64, 1),
            (64, 32, 128, 2),
            (128, 32, 128, 1),
            (128, 64, 256, 2),
            (256, 64, 256, 1),
        ]
        self.layers = nn.Sequential(*(Bottleneck(*one) for one in widths))
        self.head = nn.Linear(256, CLASSES)

    def forward(self, x):
        return self.head(self.layers(self.stem(x)).mean((2, 3)))

    @staticmethod
    def data(batch):
        return torch.randn(batch, 3, 64, 64), torch.randint(0, CLASSES, (batch,))


class LSTM(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(nn.LSTM(WIDTH, WIDTH, batch_first=True) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, x):
        x = self.words(x)
        for layer in self.layers:
            x, _ = layer(x)
        return self.head(x).flatten(0, 1)

    data = staticmethod(GPT.data)


def recomputed(model, glob):
    """Calls of the modules that match are checkpointed."""
    for name, module in model.named_modules():
        if fnmatchcase(name, glob):
            forward = module.forward
            module.forward = lambda *given, forward=forward: checkpoint(forward, *given, use_reentrant=False)


def main():
    name, batch, change = sys.argv[1], int(sys.argv[2]), (sys.argv[3:] or [""])[0]
    torch.manual_seed(0)
    model = {"gpt": GPT, "resnet": ResNet, "lstm": LSTM}[name]()
    if change.startswith("checkpoint:"):
        recomputed(model, change.partition(":")[2])
    if change == "compile":
        model.compile()
    make = torch.optim.SGD if change == "stateless" else torch.optim.AdamW
    optimizer = make(model.parameters(), lr=1e-3)
    for _ in range(6):
        data, target = model.data(batch)
        optimizer.zero_grad()
        on = torch.autocast("cpu", torch.bfloat16) if change == "autocast" else nullcontext()
        with on:
            output = model(data)
            loss = F.cross_entropy(output, target)
        loss.backward()
        optimizer.step()


main()
