"""Parts of timm: a model, mixed labels, clipping, an optimizer, its schedule, averaged weights."""

# ruff: noqa: E402

import torch
from hand_timers import STEPS, end_step, timed

# A torchvision built for CUDA has no operators with a PyTorch for CPUs, but looks two of them up.
for name in ("nms", "qnms"):
    if not torch._C._dispatch_has_kernel(f"torchvision::{name}"):
        torch.library.define(
            f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )

import timm
from timm.data import Mixup
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import CosineLRScheduler
from timm.utils import ModelEmaV3, dispatch_clip_grad

torch.manual_seed(0)
model = timm.create_model("convnext_atto", num_classes=10, drop_path_rate=0.1)
average = ModelEmaV3(model, decay=0.99)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler = CosineLRScheduler(optimizer, t_initial=STEPS, t_in_epochs=False)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, num_classes=10)
labels, loss_of = torch.arange(4), SoftTargetCrossEntropy()
for step in range(STEPS):
    with timed("data"):
        images, targets = mixup(torch.randn(4, 3, 32, 32), labels)
    with timed("forward"):
        loss = loss_of(model(images), targets)
    with timed("backward"):
        optimizer.zero_grad()
        loss.backward()
    with timed("optimizer"):
        dispatch_clip_grad(model.parameters(), value=1.0)
        optimizer.step()
    average.update(model, step=step)
    scheduler.step_update(num_updates=step)
    end_step()
