"""`stepscope run` on loops with several optimizers: their stages, named as in the script."""

import pytest
from test_run import record, write

import stepscope
from stepscope.facts.summary.report_facts import summarize

MODELS = """
import torch
from torch import nn
torch.manual_seed(0)
def net(*sizes):
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*[layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())])
one, two = net(8, 32, 4), net(4, 32, 1)
def passes(*models):
    x = torch.randn(16, 8)
    for model in models:
        x = model(x)
    return x.sum()
"""

SCRIPTS = {
    "dcgan": (
        """
optD, optG = torch.optim.Adam(two.parameters()), torch.optim.Adam(one.parameters())
for _ in range(30):
    fake = one(torch.randn(16, 8))
    two.zero_grad(); two(fake.detach()).sum().backward(); optD.step()
    one.zero_grad(); two(fake).sum().backward(); optG.step()
""",
        {"optD": 1, "optG": 1},
        {"optD": {"one", "two"}, "optG": {"one", "two"}},
    ),
    "wgan": (
        """
class Trainer:
    def __init__(self):
        of = torch.optim.RMSprop
        self.opts = {"c": of(two.parameters()), "g": of(one.parameters())}
    def update(self, optimizer, loss):
        optimizer.zero_grad(); loss.backward(); optimizer.step()
    def fit(self):
        for _ in range(30):
            for _ in range(5):
                self.update(self.opts["c"], passes(one, two))
            self.update(self.opts["g"], passes(one, two))
Trainer().fit()
""",
        {"opts.c": 5, "opts.g": 1},
        {},
    ),
    "actor_critic": (
        """
actor_opt, critic_opt = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
for _ in range(30):
    loss = passes(one, two)
    actor_opt.zero_grad(); critic_opt.zero_grad()
    loss.backward()
    for opt in (actor_opt, critic_opt):
        opt.step()
""",
        {"actor_opt, critic_opt": 1, "actor_opt": 1, "critic_opt": 1},
        {},
    ),
    "delayed_policy": (
        """
policy, value = torch.optim.Adam(one.parameters()), torch.optim.Adam(two.parameters())
for i in range(60):
    value.zero_grad(); passes(one, two).backward(); value.step()
    if i % 3 == 2:
        policy.zero_grad(); passes(one).backward(); policy.step()
""",
        {"value": 3, "policy": 1},
        {},
    ),
    "closures": (
        """
first = torch.optim.LBFGS(one.parameters(), max_iter=2)
second = torch.optim.SGD(two.parameters(), 0.1)
def closure():
    first.zero_grad()
    loss = (passes(one) - 1) ** 2
    loss.backward()
    return loss
for _ in range(30):
    first.step(closure)
    second.zero_grad(); passes(one, two).backward(); second.step()
""",
        {"first": 1, "second": 1},
        {},
    ),
    "single": (
        """
optimizer = torch.optim.SGD(two.parameters(), 0.1)
for _ in range(30):
    optimizer.zero_grad(); passes(one, two).backward(); optimizer.step()
""",
        {},
        {},
    ),
}


@pytest.mark.parametrize(("script", "times", "models"), SCRIPTS.values(), ids=SCRIPTS)
def test_updates_by_optimizer(tmp_path, script, times, models):
    done, _ = record(tmp_path, str(write(tmp_path, MODELS + script)))
    assert done.returncode == 0, done.stderr
    trace = stepscope.open(next(tmp_path.glob("*.stepscope")))
    updates = {update.optimizer: update for update in summarize(trace).updates}
    assert {name: update.count for name, update in updates.items()} == times
    for name, expected in models.items():
        assert {model.path for model in updates[name].models} == expected
    stages = trace["stages"]
    passes = stages.text("stage").mask("forward", "loss", "backward", "optimizer")
    assert (stages["optimizer"][passes] >= 0).all()
