"""`stepscope fits`: scripts for a GPU, on a machine without one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from stepscope.faces.terminal.commands import stepscope

pytest.importorskip("torch")

MB = 1 << 20
# 16 MB of weights; Adam keeps twice as much, and updates with as many gradients and one copy.
SCRIPT = """
import torch
from torch import nn

batch_size = 4
model = nn.Sequential(nn.Linear(2048, 2048, bias=False), nn.Dropout(0.5)).cuda()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3)
for step in range(40):
    x = torch.randn(batch_size, 2048, device="cuda")
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
    torch.cuda.synchronize()
    torch.save(model.state_dict(), "model.pt")
"""
JAX = """
import jax
import jax.numpy as jnp

batch_size = 8
weights = jnp.ones((64, 64))
step = jax.jit(lambda w, x: w - 0.1 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w))
for _ in range(40):
    weights = step(weights, jnp.ones((batch_size, 64)))
print(weights.sum())
"""


def answer(folder: Path, text: str, *options: str) -> dict[str, Any]:
    path = folder / "train.py"
    path.write_text(text)
    done = CliRunner().invoke(stepscope, ["fits", "--json", str(path), *options])
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.mark.parametrize(("optimizer", "copies"), [("Adam", 5), ("SGD", 2)])
def test_a_script_for_a_gpu_is_looked_at_without_one(tmp_path: Path, optimizer: str, copies: int) -> None:
    found = answer(tmp_path, SCRIPT.format(optimizer=optimizer), "--on", "H100,1GB")
    own = [fit["now"] for fit in found["fits"]]
    assert own[0]["bytes"] == pytest.approx((64 + 16 * copies) * MB, rel=0.01)
    assert [now["fits"] for now in own] == ["yes", "yes"]
    assert found["fits"][0]["batch"] > found["fits"][1]["batch"] > 256


def test_a_script_that_cannot_run_without_values_is_run(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    found = answer(tmp_path, JAX, "--on", "H100")
    assert found["fits"][0]["now"]["fits"] == "yes"
