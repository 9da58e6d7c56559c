"""Throughput counts the samples that a step processes, whatever the script calls its batch size."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stepscope.errors import BatchError
from stepscope.models.batch_size.entry import module_file, open_entry
from stepscope.models.batch_size.entry_profile import make_profile
from stepscope.models.batch_size.measurement import MeasuredBatch, combine
from stepscope.models.batch_size.worker_process import Worker
from stepscope.record.batch_size.request import Effort

EFFORT = Effort(warmup=1, memory=1, least=4, most=4, seconds=0.0)
HEAD = """
import torch
from torch.utils.data import DataLoader, TensorDataset

batch_size = 16
data = TensorDataset(torch.randn({samples}, 4))
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
"""
STEP = """
    model(x).sum().backward()
    optimizer.step()
"""
SCRIPTS = {
    "one batch": ("for (x,) in DataLoader(data, batch_size=batch_size):" + STEP, [16] * 4),
    "four micro-batches": (
        """
for i, (x,) in enumerate(DataLoader(data, batch_size=batch_size)):
    model(x).sum().backward()
    if i % 4 == 3:
        optimizer.step()
""",
        [64] * 4,
    ),
    "divided among four devices": (
        "for (x,) in DataLoader(data, batch_size=int(batch_size / 4)):" + STEP,
        [4] * 4,
    ),
    "workers that load ahead": (
        "for (x,) in DataLoader(data, batch_size=batch_size, num_workers=1):" + STEP,
        [16] * 4,
    ),
    "evaluation in between": (
        """
for (x,) in DataLoader(data, batch_size=batch_size):
    with torch.no_grad():
        next(iter(DataLoader(data, batch_size=99)))
"""
        + STEP,
        [16] * 4,
    ),
    "no loader": ("while True:\n    x = torch.randn(batch_size, 4)" + STEP, [0] * 4),
}


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with closing(Worker()) as worker:
        yield worker


@pytest.mark.parametrize("name", SCRIPTS)
def test_samples_of_a_step(worker: Worker, tmp_path: Path, name: str) -> None:
    body, expected = SCRIPTS[name]
    script = tmp_path / "train.py"
    script.write_text(HEAD.format(samples=4096) + body)
    entry = open_entry(script, folder=tmp_path, choice="5")
    facts = worker.run(entry.request(16, effort=EFFORT, timeout_s=120.0)).facts
    assert facts["samples"] == expected


def test_a_short_last_batch_is_no_step_to_time(worker: Worker, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    loop = "while True:\n  for (x,) in DataLoader(data, batch_size=batch_size):"
    script.write_text(HEAD.format(samples=40) + loop + STEP.replace("    ", "      "))
    entry = open_entry(script, folder=tmp_path, choice="5")
    facts = worker.run(entry.request(16, effort=EFFORT, timeout_s=120.0)).facts
    assert set(facts["samples"]) == {16}


def test_throughput_counts_them() -> None:
    points = [
        combine([MeasuredBatch(batch, (2.0 * batch + 20.0,), 100, {"samples": [4 * batch]})])
        for batch in (8, 16, 32)
    ]
    profile = make_profile(points)
    assert points[0].throughput == pytest.approx(1e3 * 32 / 36)
    assert profile.samples_per_batch == 4
    assert profile.predict(64)["throughput"] == pytest.approx(1e3 * 256 / 148)
    assert profile.max_throughput == pytest.approx(2000)
    assert profile.batch_for_throughput(1e3 * 256 / 148) == 64


def test_a_module_is_measured_as_python_m_runs_it(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "sizes.py").write_text("EXTRA = 0\n")
    body, _ = SCRIPTS["one batch"]
    (package / "train.py").write_text("from .sizes import EXTRA\n" + HEAD.format(samples=4096) + body)
    monkeypatch.chdir(tmp_path)
    path = module_file("package.train")
    entry = open_entry(path, choice="batch_size", module="package.train")
    facts = worker.run(entry.request(32, effort=EFFORT, timeout_s=120.0)).facts
    assert (facts["outcome"], facts.get("samples")) == ("measured", [32] * 4)
    with pytest.raises(BatchError, match="there is no module"):
        module_file("package.missing")
