"""Set prediction as in DETR: matching with scipy on the CPU inside of the loss."""

import torch
import torch.nn.functional as F
from hand_timers import STEPS, end_step, timed
from scipy.optimize import linear_sum_assignment
from torch import nn


class Detector(nn.Module):
    def __init__(self, width=128, queries=30, classes=12):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 32, 5, 4), nn.ReLU(), nn.Conv2d(32, width, 3, 2), nn.ReLU()
        )
        self.transformer = nn.Transformer(width, 4, 1, 1, 256, batch_first=True, dropout=0.0)
        self.queries = nn.Embedding(queries, width)
        self.to_class = nn.Linear(width, classes + 1)
        self.to_box = nn.Linear(width, 4)

    def forward(self, images):
        features = self.backbone(images).flatten(2).transpose(1, 2)
        decoded = self.transformer(features, self.queries.weight.expand(len(images), -1, -1))
        return self.to_class(decoded), self.to_box(decoded).sigmoid()


@torch.no_grad()
def match(logits, boxes, targets, strict=True):
    found = []
    for scores, box, (labels, wanted) in zip(logits.softmax(-1), boxes, targets, strict=True):
        cost = torch.cdist(box, wanted, p=1) - scores[:, labels]
        found.append(linear_sum_assignment(cost.numpy()))
    return found


def set_loss(logits, boxes, targets, strict=True):
    pairs = match(logits, boxes, targets)
    classes = torch.full(logits.shape[:2], 12)
    box_loss = 0.0
    for i, ((rows, columns), (labels, wanted)) in enumerate(zip(pairs, targets, strict=True)):
        rows, columns = torch.as_tensor(rows), torch.as_tensor(columns)
        classes[i, rows] = labels[columns]
        box_loss = box_loss + F.l1_loss(boxes[i, rows], wanted[columns])
    return F.cross_entropy(logits.transpose(1, 2), classes) + box_loss


torch.manual_seed(0)
model = Detector()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
for _ in range(STEPS):
    images = torch.randn(4, 3, 64, 64)
    targets = [(torch.randint(12, (8,)), torch.rand(8, 4)) for _ in range(4)]
    with timed("forward"):
        logits, boxes = model(images)
        loss = set_loss(logits, boxes, targets)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    end_step()
