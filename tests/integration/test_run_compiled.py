"""`stepscope run` on models of torch.compile: names of modules down to the leaves."""

import os

import pytest
from test_run import record, write

import stepscope

BLOCKS = """
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.norm, self.a, self.b = nn.LayerNorm(n), nn.Linear(n, n), nn.Linear(n, n)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(self.norm(x))))
net = nn.Sequential(Block(32), Block(32), nn.Linear(32, 4))
call = net
optimizer = torch.optim.SGD(net.parameters(), 0.1)
{compiled}
for _ in range(20):
    optimizer.zero_grad()
    call(torch.randn(16, 32)).square().sum().backward()
    optimizer.step()
"""
LEAVES = ["0.norm", "0.a", "0.b", "1.norm", "1.a", "1.b", "2"]
WAYS = {
    "model": "call = torch.compile(net)",
    "in place": "net.compile()",
    "blocks": "net[0].compile(); net[1].compile()",
    "function": "call = torch.compile(lambda x: net(x))",
    "dynamic": "call = torch.compile(net, dynamic=True)",
    "reduce-overhead": "call = torch.compile(net, mode='reduce-overhead')",
}


@pytest.fixture(scope="module")
def environment(tmp_path_factory, worker_id):
    """One cache for all workers, so that later runs find what earlier ones compiled."""
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "inductor"
    return {**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}


def modules_of(folder, script, environment):
    done, _ = record(folder, str(write(folder, script)), env=environment)
    assert done.returncode == 0, done.stderr
    trace = stepscope.open(next(folder.glob("*.stepscope")))
    assert "compiled_modules" not in list(trace["warnings"].text("code"))
    return trace, {row["path"]: row for row in trace["modules"].rows()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("found", ["new", "in a cache"])
def test_leaves_of_compiled_models(tmp_path, environment, way, found):
    trace, modules = modules_of(tmp_path, BLOCKS.format(compiled=WAYS[way]), environment)
    for path in LEAVES:
        row = modules[path]
        assert (row["calls"], row["class"]) == (3, "Linear" if path[-1] != "m" else "LayerNorm")
        assert row["forward_cpu_ns"] > 0, path
        assert row["backward_cpu_ns"] > 0, path
    for phase in ("forward", "backward"):
        inside = sum(modules[path][f"{phase}_cpu_ns"] for path in ("0", "1", "2"))
        assert inside <= modules[""][f"{phase}_cpu_ns"]
    names = trace.events.text("name")
    of = {path: [] for path in LEAVES}
    for event, module in enumerate(trace.events["module"].tolist()):
        path = trace["modules"].text("path")[module] if module >= 0 else None
        if names[event] in ("aten::addmm", "aten::mm") and path in of:
            of[path].append(names[event])
    for path in ("0.a", "0.b", "1.a", "1.b", "2"):
        assert of[path].count("aten::addmm") == 3, path
        assert of[path].count("aten::mm") == 6, path


def test_graph_breaks(tmp_path, environment):
    script = BLOCKS.replace("return x + self", "torch._dynamo.graph_break(); return x + self")
    _, modules = modules_of(tmp_path, script.format(compiled=WAYS["model"]), environment)
    for path in LEAVES:
        assert modules[path]["forward_cpu_ns"] > 0, path
        assert modules[path]["backward_cpu_ns"] > 0, path
