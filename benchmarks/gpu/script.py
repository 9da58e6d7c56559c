"""The training script that is captured: as a user would write it, and knowing nothing of us."""

from __future__ import annotations

from benchmarks.gpu.setting import Setting

STEPS = 10

_SCRIPT = '''"""Train {model} on synthetic data, in FP32."""

import torch
from benchmarks.gpu.drawn import drawn_batches
from benchmarks.gpu.models import MODELS
from benchmarks.gpu.training import pinned

torch.manual_seed({seed})
torch.backends.cuda.matmul.allow_tf32 = False
torch.backends.cudnn.allow_tf32 = False

spec = MODELS["{model}"]
samples = spec.samples({quick})
with torch.device("{device}"):
    model = spec.build({quick}).train()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
{batches}

for _ in range({steps}):
    host = next(batches)
    batch = {{name: tensor.to("{device}", non_blocking=True) for name, tensor in host.items()}}
    optimizer.zero_grad()
    loss = spec.loss(model, batch)
    loss.backward()
    optimizer.step()
print("loss", loss.item())
'''
_ONE_BATCH = 'batches = iter([pinned(spec.batch(samples, {quick}), "{device}")] * {steps})'
_LOADED = 'batches = drawn_batches("{model}", {quick}, samples, "{device}", workers=0)'


def training_script(model: str, setting: Setting, loader: bool = False, steps: int = STEPS) -> str:
    """The text of a script that trains a model, on one batch or on what a data loader draws."""
    values = {
        "model": model,
        "device": setting.device,
        "quick": setting.quick,
        "seed": setting.seed,
        "steps": steps,
    }
    batches = (_LOADED if loader else _ONE_BATCH).format(**values)
    return _SCRIPT.format(**values, batches=batches)
