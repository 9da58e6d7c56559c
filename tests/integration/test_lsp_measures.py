"""Measuring for an editor, for real: costs, and mistakes at their lines."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepscope.faces.editor.background import find_findings, predict_devices
from stepscope.faces.editor.measuring import (
    Measured,
    MeasureError,
    MeasureRequest,
    Measuring,
    Problem,
    Settings,
)
from stepscope.models.devices import Wanted

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))

    def forward(self, x):
        x = self.body(x)
        return x


def stepscope_model_provider():
    return Net()


def stepscope_input_provider(batch_size=16):
    return (torch.randn(batch_size, 64),)


def stepscope_iteration_provider(model):
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)

    def iteration(x):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    return iteration
"""
MISTAKES = {
    "a syntax error": ("return x\n", "return x)\n", 12),
    "an exception": ("return x\n", "return x.nonsense\n", 12),
    "a step that never ends": ("x = self.body(x)\n", "while True: x = x + 1\n", 11),
    "out of memory": ("x = self.body(x)\n", "x = torch.empty(10**15)\n", 11),
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What came of each mistake, and of the right file before and after, by one measuring."""
    folder = tmp_path_factory.mktemp("lsp").resolve()
    return asyncio.run(_measure_all(folder))


async def _measure_all(folder: Path) -> dict[str, Any]:
    measuring = Measuring()
    measuring.prepare()
    found: dict[str, Any] = {}
    texts = {name: MODEL.replace(old, new, 1) for name, (old, new, _) in MISTAKES.items()}
    report = lambda words, done: None  # noqa: E731
    for name, text in {"before": MODEL, **texts, "after": MODEL}.items():
        entry = folder / f"{name.replace(' ', '_')}.py"
        entry.write_text(text)
        settings = Settings(time_limit=5.0 if "never" in name else 120.0)
        try:
            found[name] = await measuring(MeasureRequest(str(entry), settings), report)
        except MeasureError as error:
            found[name] = error.problem
    wanted = Wanted((16,), ranks=2)
    after = found["after"].result
    found["devices"] = await predict_devices(after, "A100,g6.xlarge", wanted)
    found["no devices"] = await predict_devices(after, "Z9", wanted)
    found["findings"] = await find_findings(found["after"].capture)
    await measuring.close()
    return found


@pytest.mark.parametrize("when", ["before", "after"])
def test_costs_are_at_the_lines_of_the_model(outcomes: dict[str, Any], when: str) -> None:
    measured = outcomes[when]
    assert isinstance(measured, Measured)
    costs = measured.files[measured.entry]
    assert costs.lines[11].forward_ms > 0
    assert costs.lines[11].backward_ms > 0
    assert costs.lines[8].weights_bytes == 2 * 4 * (64 * 64 + 64)
    assert measured.batch["now"]["batch"] == 16
    assert {row["batch"] for row in measured.batch["curve"]} >= {1, 16}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_at_its_line(outcomes: dict[str, Any], name: str) -> None:
    problem = outcomes[name]
    assert isinstance(problem, Problem)
    assert Path(problem.path).stem == name.replace(" ", "_")
    assert problem.line == MISTAKES[name][2], problem.message


def test_other_devices_are_predicted_from_what_was_measured(outcomes: dict[str, Any]) -> None:
    reply = outcomes["devices"]
    assert reply.problem is None
    for row, name in zip(reply.devices.devices, ("A100", "L4"), strict=True):
        assert row.name == name
        assert [one.batch for one in row.predictions] == [16]
        assert [one.ranks for one in row.ranks] == [2]


def test_why_other_devices_are_not_predicted(outcomes: dict[str, Any]) -> None:
    assert "unknown device or instance 'Z9'" in outcomes["no devices"].problem
    reply = asyncio.run(predict_devices(None, "A100", Wanted()))
    assert (reply.devices, reply.problem) == (None, "not measured yet")


def test_findings_name_rules_and_evidence(outcomes: dict[str, Any]) -> None:
    """AdamW takes the four parameters one after the other, some ten operators each."""
    loop = next(one for one in outcomes["findings"] if one["rule"] == "optimizer_loop")
    assert "aten::addcdiv_" in {place["name"] for place in loop["evidence"]}
    assert all(finding["evidence"] for finding in outcomes["findings"])
    line = MODEL.splitlines().index("        optimizer.step()") + 1
    assert {(Path(place["file"]).name, place["line"]) for place in loop["evidence"]} == {("after.py", line)}
