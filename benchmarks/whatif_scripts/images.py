"""A small network bound by its input: pictures are added up from waves, and made smaller."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, STEPS = (int(value) for value in (*sys.argv[1:], *(16, 10_000)[len(sys.argv) - 1 :]))


class Images(Dataset):
    """What a decoder does, without files: a picture added up from waves, in another size."""

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        place = torch.linspace(0, 6.28, 512)
        image = torch.zeros(1, 3, 512, 512)
        for wave in range(1, 13):
            image[0, wave % 3].addr_((place * (index % 7 + wave)).sin(), place.cos())
        image = nn.functional.interpolate(image, size=(96, 96), mode="bilinear", antialias=True)
        return image[0].flip(-1), index % 10


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 24, 3, stride=2),
    nn.ReLU(),
    nn.Conv2d(24, 48, 3, stride=2),
    nn.ReLU(),
    nn.Conv2d(48, 64, 3),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for images, labels in DataLoader(Images(), batch_size=BATCH):
    loss = criterion(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
