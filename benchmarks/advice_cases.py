"""Small training scripts with one defect each, and its fix."""

from __future__ import annotations

from dataclasses import dataclass, replace

OWN_PATCH = ""


@dataclass(frozen=True)
class Case:
    """A script with a defect.

    Attributes:
        name: unique.
        rule: the rule that must report the defect.
        setup: creates `model`, `optimizer` and whatever `step` needs.
        body: the step, which takes `batch`.
        before, after: the fix, as a replacement in the script; without `after` the fix is the
            finding's own patch.
        batches: an expression for the batches of `STEPS` steps.
        samples: how many samples a step has before and after.
        waits: whether elapsed time counts, as the step waits; else CPU time, which other programs
            change less.
    """

    name: str
    rule: str
    setup: str
    body: str
    before: str = ""
    after: str = OWN_PATCH
    batches: str = "(torch.randn(32, 64) for _ in range(STEPS))"
    samples: tuple[int, int] = (1, 1)
    waits: bool = False

    @property
    def script(self) -> str:
        """The source of the script; it prints the time of each step in ms."""
        body = "\n".join(f"    {line}" for line in self.body.strip().split("\n"))
        clock = "perf_counter" if self.waits else "process_time"
        return _SCRIPT.format(setup=self.setup.strip(), body=body, batches=self.batches, clock=clock)


_SCRIPT = """
import json, logging, os, sys, time
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS = int(sys.argv[1])
torch.manual_seed(0)
torch.set_num_threads(1)
{setup}


def step(batch):
{body}


next_step = globals().get("next_step", lambda: None)
times, begin = [], time.{clock}()
for batch in {batches}:
    step(batch)
    times.append(1000 * (time.{clock}() - begin))
    next_step()
    begin = time.{clock}()
print(json.dumps(times))
"""
_MODEL = "model = nn.Sequential(*(nn.Linear({0}, {0}) for _ in range({1})))"
_SGD = "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)"
_TRAIN = "loss.backward()\noptimizer.step()\noptimizer.zero_grad()"
_LINEAR = f"model = nn.Linear(64, 64)\n{_SGD}\n"
_LOSS = f"loss = model(batch).square().mean()\n{_TRAIN}"


def _optimizer(name: str, created: str, size: int, layers: int) -> Case:
    setup = f"{_MODEL.format(size, layers)}\noptimizer = torch.optim.{created}"
    batches = f"(torch.randn(8, {size}) for _ in range(STEPS))"
    return Case(f"optimizer-{name}", "optimizer_loop", setup, _LOSS, batches=batches)


def _loader(name: str, seconds: float, batch: int, size: int) -> Case:
    setup = f"""
class Disk(Dataset):
    def __len__(self):
        return {batch} * STEPS

    def __getitem__(self, index):
        time.sleep({seconds})
        return torch.randn({size})


model = nn.Sequential(nn.Linear({size}, 1024), nn.ReLU(), nn.Linear(1024, 1024))
{_SGD}
loader = DataLoader(Disk(), batch_size={batch})
"""
    return Case(f"loader-{name}", "input_bound", setup, _LOSS, batches="loader", waits=True)


def _computing_loader(name: str, loops: int, batch: int) -> Case:
    case = _loader(name, 0.0, batch, 64)
    setup = case.setup.replace("time.sleep(0.0)", f"sum(k * index for k in range({loops}))")
    return replace(case, setup=setup)


def _restarting(name: str, batches: int, options: str = "num_workers=2") -> Case:
    """Each epoch starts the workers again; as many epochs as make up the steps."""
    setup = f"""
data = torch.utils.data.TensorDataset(torch.randn({batches} * 64, 64))
{_LINEAR}
loader = DataLoader(data, batch_size=64, {options})
"""
    epochs = f"(batch for _ in range(-(-STEPS // {batches})) for batch, in loader)"
    return Case(f"restarts-{name}", "restarted_workers", setup, _LOSS, batches=epochs, waits=True)


def _tokens(name: str, experts: int, size: int, tokens: int) -> Case:
    """Each token alone through its expert; grouped by experts instead."""
    setup = f"""
class MoE(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear({size}, {experts})
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear({size}, 4 * {size}), nn.GELU(), nn.Linear(4 * {size}, {size}))
            for _ in range({experts})
        )

    def alone(self, x, weight, chosen):
        return torch.cat([self.experts[int(k)](x[n : n + 1]) * weight[n] for n, k in enumerate(chosen)])

    def grouped(self, x, weight, chosen):
        out = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            rows = (chosen == k).nonzero().squeeze(1)
            out = out.index_add(0, rows, expert(x[rows]) * weight[rows, None])
        return out

    def forward(self, x):
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        return self.alone(x, weight, chosen)


model = MoE()
{_SGD}
"""
    batches = f"(torch.randn({tokens}, {size}) for _ in range(STEPS))"
    return Case(f"tokens-{name}", "expert_loop", setup, _LOSS, "self.alone(", "self.grouped(", batches)


def _rows(name: str, rows: int, layers: int) -> Case:
    """The model is called for each row."""
    setup = f"{_MODEL.format(64, layers)}\n{_SGD}"
    alone = "torch.stack([model(row) for row in batch])"
    body = f"loss = {alone}.square().mean()\n{_TRAIN}"
    batches = f"(torch.randn({rows}, 64) for _ in range(STEPS))"
    return Case(f"each-row-{name}", "repeated_module", setup, body, alone, "model(batch)", batches)


def _written_out(name: str, written: str, fused: str, size: int = 64) -> Case:
    setup = f"model = nn.ModuleList(nn.Linear({size}, {size}) for _ in range(5))\n{_SGD}"
    body = f"x = batch\nfor layer in model:\n    x = layer(x)\n    x = {written}\n"
    body += f"loss = x.mean()\n{_TRAIN}"
    batches = f"(torch.randn(32, {size}) for _ in range(STEPS))"
    return Case(f"fusion-{name}", "kernel_fusion", setup, body, f"x = {written}", f"x = {fused}", batches)


def _hot(name: str, slow: str, fast: str, columns: int = 4096) -> Case:
    setup = f"model = nn.Linear(64, {columns})\n{_SGD}"
    body = f"scores = model(batch)\nx = scores.detach()\n{slow}\nloss = scores.mean()\n{_TRAIN}"
    return Case(f"hotspot-{name}", "hotspot", setup, body, slow, fast)


def _reads(name: str, slow: str, fast: str) -> Case:
    body = f"{_LOSS}\nx = batch[:, 0]\nhits = torch.zeros(())\n{slow}"
    return Case(
        f"reads-{name}",
        "synchronizing_calls",
        _LINEAR,
        body,
        slow,
        fast,
        "(torch.randn(128, 64) for _ in range(STEPS))",
    )


def _python(name: str, slow: str, waits: bool = False) -> Case:
    body = f"{_LOSS}\n{slow}"
    return Case(name, "cpu_latency", _LINEAR, body, slow, "None", waits=waits)


def _one_row(name: str, layers: int) -> Case:
    setup = f"{_MODEL.format(64, layers)}\n{_SGD}"
    batches = "(torch.randn(1, 64) for _ in range(STEPS))"
    return Case(
        f"rows-{name}",
        "small_batch",
        setup,
        _LOSS,
        "torch.randn(1, 64)",
        "torch.randn(64, 64)",
        batches,
        (1, 64),
    )


def _zeroing(name: str, created: str, size: int, layers: int) -> Case:
    setup = f"{_MODEL.format(size, layers)}\noptimizer = torch.optim.{created}"
    body = "loss = model(batch).square().mean()\noptimizer.zero_grad(set_to_none=False)\n"
    body += "loss.backward()\noptimizer.step()"
    return Case(
        f"zeroing-{name}",
        "zero_grad_memset",
        setup,
        body,
        "set_to_none=False",
        "set_to_none=True",
        f"(torch.randn(2, {size}) for _ in range(STEPS))",
    )


CASES = (
    _optimizer("adamw-loop", "AdamW(model.parameters(), lr=1e-3, foreach=False)", 32, 40),
    _optimizer("adam-default", "Adam(model.parameters(), lr=1e-3)", 16, 60),
    _optimizer("sgd-momentum", "SGD(model.parameters(), lr=1e-3, momentum=0.9)", 32, 80),
    _optimizer("adagrad", "Adagrad(model.parameters(), lr=1e-3)", 32, 40),
    _optimizer("adamw-large", "AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)", 256, 30),
    _optimizer("adam-amsgrad", "Adam(model.parameters(), lr=1e-3, amsgrad=True)", 64, 40),
    _loader("slow-disk", 0.002, 16, 256),
    _loader("slower-disk", 0.005, 8, 256),
    _loader("many-small", 0.0005, 32, 128),
    _loader("large-samples", 0.003, 8, 1024),
    _computing_loader("computes", 2000, 16),
    _computing_loader("computes-more", 20_000, 8),
    _restarting("short-epochs", 6),
    _restarting("longer-epochs", 12),
    _tokens("few-experts", 8, 64, 256),
    _tokens("many-experts", 16, 32, 128),
    _rows("shallow", 64, 3),
    _rows("deep", 32, 8),
    _written_out(
        "gelu", "0.5 * x * (1 + torch.tanh(0.8 * (x + 0.04 * x * x * x)))", "F.gelu(x, approximate='tanh')"
    ),
    _written_out(
        "layer-norm",
        "(x - x.mean(1, True)) * (x.var(1, keepdim=True) + 1e-5).rsqrt()",
        "F.layer_norm(x, x.shape[1:])",
    ),
    _written_out("softplus", "torch.log(1 + torch.exp(-x.abs())) + x.clamp(0)", "F.softplus(x)"),
    _written_out("hardswish", "x * (x + 3).clamp(0, 6) * (1 / 6)", "F.hardswish(x)"),
    _written_out("mish", "x * torch.tanh(torch.log(1 + torch.exp(x)))", "F.mish(x)"),
    _hot("argsort", "x.argsort(1, descending=True)[:, 0]", "x.argmax(1)"),
    _hot("sort-median", "x.sort(1).values[:, 0]", "x.amin(1)"),
    _hot("cumsum", "x.cumsum(1).cumsum(1).cumsum(1)[:, -1]", "x.sum(1)"),
    _hot("noise", "torch.randn(200_000)", "None"),
    _hot("unique", "torch.unique((x * 100).long()).numel()", "None"),
    _reads("item", "for one in x: hits += one.item() > 0", "hits += (x > 0).sum()"),
    _reads("float", "for one in x: hits += float(one)", "hits += x.sum()"),
    _reads("condition", "for one in x: hits += 1 if one > 0 else 0", "hits += (x > 0).sum()"),
    _python("python-labels", "[[i * j for i in range(100)] for j in range(100)]"),
    _python("python-text", "' '.join(str(i) for i in range(20000)).split()"),
    _python("python-sleep", "time.sleep(0.004)", waits=True),
    _python("python-json", "json.loads(json.dumps(list(range(20000))))"),
    _python("python-lists", "sorted(batch.flatten().tolist() * 5)"),
    _one_row("shallow", 6),
    _one_row("deep", 16),
    _zeroing("sgd", "SGD(model.parameters(), lr=1e-3, fused=True)", 128, 30),
    _zeroing("adam", "Adam(model.parameters(), lr=1e-3, fused=True)", 256, 30),
    Case(
        "gradient-embedding",
        "forward_backward",
        "model = nn.Embedding(100_000, 64, sparse=False)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)",
        f"loss = model(batch).square().mean()\n{_TRAIN}",
        "sparse=False",
        "sparse=True",
        "(torch.randint(100_000, (64,)) for _ in range(STEPS))",
    ),
    Case(
        "gradient-index",
        "index_backward",
        "weight = torch.randn(1000, requires_grad=True)\noptimizer = torch.optim.SGD([weight], lr=1e-3)",
        f"loss = weight[batch].sum()\n{_TRAIN}",
        "weight[batch]",
        "weight.index_select(0, batch)",
        "(torch.randint(1000, (200_000,)) for _ in range(STEPS))",
    ),
)
