"""`stepscope run` on models of TorchScript: names of modules down to the leaves."""

import pytest
from test_run import record, write

import stepscope

SCRIPT = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.a, self.b = nn.Linear(n, n), nn.Linear(n, n)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(x)))
net = nn.Sequential(Block(32), Block(32), nn.Linear(32, 4))
net = torch.jit.{made}
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for _ in range(20):
    optimizer.zero_grad()
    net(torch.randn(16, 32)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("made", ["script(net)", "trace(net, torch.randn(16, 32))"])
def test_leaves_of_scripted_models(tmp_path, made):
    done, _ = record(tmp_path, str(write(tmp_path, SCRIPT.replace("{made}", made))))
    assert done.returncode == 0, done.stderr
    trace = stepscope.open(next(tmp_path.glob("*.stepscope")))
    rows = list(trace["modules"].rows())
    root = next(row["path"] for row in rows if row["parent"] is None and row["forward_cpu_ns"])
    modules = {
        row["path"].removeprefix(root).removeprefix("."): row
        for row in rows
        if row["path"].startswith(root) and row["forward_cpu_ns"]
    }
    assert list(modules) == ["", "0", "0.a", "0.b", "1", "1.a", "1.b", "2"]
    assert {row["class"] for row in modules.values()} == {"Sequential", "Block", "Linear"}
    assert all(row["calls"] == 3 and row["forward_cpu_ns"] > 0 for row in modules.values())
    assert modules[""]["backward_cpu_ns"] > 0
    names, called = trace.events.text("name"), ("aten::linear", "aten::relu", "aten::add")
    of = {
        path: [
            names[event]
            for event, module in enumerate(trace.events["module"].tolist())
            if module == row["id"] and names[event] in called
        ]
        for path, row in modules.items()
    }
    for path in ("0.a", "0.b", "1.a", "1.b", "2"):
        assert of[path] == ["aten::linear"] * 3
    assert of["0"] == of["1"] == ["aten::relu", "aten::add"] * 3
