"""Small training scripts for `run --memory`, recorded by one process: torch is imported once."""

from __future__ import annotations

import sys
from pathlib import Path

from warm_python import run_warm

_RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()", "--memory"]
_SCRIPT = """
import torch
from torch import nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)
    def forward(self, x):
        return x + self.narrow(F.gelu(self.wide(self.norm(x))))

class Net(nn.Module):
    def __init__(self, blocks=3, classes=10, width=64):
        super().__init__()
        self.blocks = nn.Sequential(*(Block() for _ in range(blocks)))
        self.head = nn.Linear(width, classes)
    def forward(self, x):
        return self.head(self.blocks(x))

torch.manual_seed(0)
model, kept, cache = Net(), [], {}
batch = 256
def step(number, data, target):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss
"""
_LOOP = """
optimizer = torch.optim.Adam(model.parameters())
for number in range(5):
    data, target = torch.randn(batch, 64), torch.randint(0, 10, (batch,))
    loss = step(number, data, target)
"""
VARIANTS = {
    "plain": "",
    "checkpointed": "body = model.blocks[1].forward\n"
    "model.blocks[1].forward = lambda x: checkpoint(body, x, use_reentrant=False)\n",
    "stateless": "torch.optim.Adam = torch.optim.SGD\n",
}
PLANTED = {
    "kept_graph": "    kept.append(F.mse_loss(model(data), torch.zeros(batch, 10)))  # here\n",
    "growing_memory": "    cache[number] = data * 2  # here\n",
}
# What good scripts keep: numbers, values without a graph, one batch, copies that replace others.
_HEALTHY = """
    kept.append(loss.item())
    cache[number] = loss.detach()
    cache["batch"] = data * 2
    average = [one.detach().clone() for one in model.parameters()]
    with torch.no_grad():
        right = model(data).argmax(1) == target
"""
_HUGE_LAYER = """
class Huge(Net):
    def forward(self, x):
        x = self.blocks(x)
        scores = torch.exp(x @ x.T)  # here
        return self.head(scores @ x)
model = Huge(blocks=1)
batch = 1024
"""
_LARGE_STATE = """
layers = [nn.Linear(64, 256), *(nn.Linear(256, 256) for _ in range(8)), nn.Linear(256, 10)]
model, batch = nn.Sequential(*layers), 4
"""
_OUT_OF_MEMORY = """
def step(number, data, target):
    if number == 2:
        torch.empty(1 << 52)  # here
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    optimizer.step()
"""


def scripts() -> dict[str, str]:
    """The text of each script, by name."""
    found = {name: _SCRIPT + change + _LOOP for name, change in VARIANTS.items()}
    found |= {name: _SCRIPT + _LOOP + after for name, after in PLANTED.items()}
    found["healthy"] = _SCRIPT + _LOOP + _HEALTHY
    found["one_large_tensor"] = _SCRIPT + _HUGE_LAYER + _LOOP
    found["optimizer_state"] = _SCRIPT + _LARGE_STATE + _LOOP
    found["out_of_memory"] = _SCRIPT + _OUT_OF_MEMORY + _LOOP
    return found


def record_all(folder: Path) -> str:
    """`stepscope run --memory` of every script, as NAME.stepscope; what they print on stderr."""
    said = ""
    for name, text in scripts().items():
        path = folder / f"{name}.py"
        path.write_text(text)
        capture = path.with_suffix(".stepscope")
        said += run_warm([*_RUN, "--warmup", "1", "-o", capture, path], folder).stderr
    return said
