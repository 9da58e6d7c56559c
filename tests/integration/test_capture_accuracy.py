"""A capture's stages and modules against a truth that the script measures by itself.

The script hangs its own hooks on its modules and keeps wall times by path and step; the capture
of the same run must say the same of the steps that it recorded.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepscope
from stepscope.trace.trace import Trace

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = [sys.executable, "-c", "from stepscope.cli.run import run; run()"]

SCRIPT = """
import json, sys, time
import torch
sys.path.insert(0, {examples!r})
torch.manual_seed(0)
torch.set_num_threads(1)

{model}

times = []
def start(path, key):
    def hook(module, *_):
        times[-1].setdefault(path, {{}}).setdefault(key, []).append(-time.perf_counter_ns())
    return hook
def stop(path, key):
    def hook(module, *_):
        times[-1][path][key][-1] += time.perf_counter_ns()
    return hook
for path, module in model.named_modules():
    module.register_forward_pre_hook(start(path, "forward"))
    module.register_forward_hook(stop(path, "forward"))
    if path in watched:
        module.register_full_backward_pre_hook(start(path, "backward"))
        module.register_full_backward_hook(stop(path, "backward"))

for step in range(9):
    times.append({{}})
    begin = time.perf_counter_ns()
    optimizer.zero_grad()
    loss = compute()
    forward = time.perf_counter_ns()
    loss.backward()
    backward = time.perf_counter_ns()
    optimizer.step()
    times[-1]["stages"] = {{
        "forward and before": [forward - begin], "backward": [backward - forward],
    }}
json.dump(times, open(sys.argv[1], "w"))
"""

MODELS = {
    "gpt2": """
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_positions=96, n_layer=3, n_embd=192, n_head=4))
watched = [f"transformer.h.{i}" for i in range(3)]
optimizer = torch.optim.AdamW(model.parameters())
tokens = torch.randint(500, (4, 96))
compute = lambda: model(input_ids=tokens, labels=tokens).loss
""",
    "resnet": """
from train_resnet import ResNet18
model = ResNet18(width=24)
for module in model.modules():
    module.inplace = False
watched = ["layer1", "layer2", "layer3", "layer4"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = torch.randn(8, 3, 64, 64), torch.randint(100, (8,))
compute = lambda: torch.nn.functional.cross_entropy(model(images), labels)
""",
}


@pytest.fixture(scope="module", params=list(MODELS))
def recorded(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, list[Any]]:
    """The capture, and the script's own times of the steps in it."""
    folder = tmp_path_factory.mktemp(request.param)
    script, truth, out = folder / "train.py", folder / "truth.json", folder / "run.stepscope"
    script.write_text(SCRIPT.format(examples=str(EXAMPLES), model=MODELS[request.param]))
    command = [*RUN, "--no-shapes", "-o", str(out), str(script), str(truth)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    steps = json.loads(zipfile.ZipFile(out).read("manifest.json"))["steps_recorded"]
    times = json.loads(truth.read_text())
    return stepscope.open(out, cache=False), [times[step] for step in steps]


def operators(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Which events are operators in steps, and their own times."""
    events = trace.events
    inside = events.text("category").mask("cpu_op") & (events["step"] >= 0)
    return inside, events["self_ns"]


def test_operator_time_has_a_stage(recorded: tuple[Trace, list[Any]]) -> None:
    trace, _ = recorded
    inside, time = operators(trace)
    staged = inside & (trace.events["stage"] >= 0)
    assert time[staged].sum() >= 0.99 * time[inside].sum()


def test_model_time_has_a_module(recorded: tuple[Trace, list[Any]]) -> None:
    trace, _ = recorded
    inside, time = operators(trace)
    for stage in ("forward", "backward"):
        rows = inside & trace.events.text("stage").mask(stage)
        assert time[rows & (trace.events["module"] >= 0)].sum() >= 0.97 * time[rows].sum(), stage


def test_stages_last_as_long_as_the_script_measures(recorded: tuple[Trace, list[Any]]) -> None:
    trace, truth = recorded
    runs = trace["stages"]
    stage, length = runs.text("stage"), runs["cpu_ns"]
    # The script's time of optimizer.step() holds the recorder's own work at the end of each step.
    expected = sum(step["stages"]["backward"][0] for step in truth)
    assert length[stage.mask("backward")].sum() == pytest.approx(expected, rel=0.08)
    before = stage.mask("forward", "loss", "zero_grad", "data_loading")
    expected = sum(step["stages"]["forward and before"][0] for step in truth)
    assert length[before].sum() == pytest.approx(expected, rel=0.08)


def test_modules_take_as_long_as_their_own_hooks_measure(
    recorded: tuple[Trace, list[Any]],
) -> None:
    """Every module of at least 3 % of the model's time, and at least 97 % of that time in all."""
    trace, truth = recorded
    rows = {row["path"]: row for row in trace["modules"].rows()}
    for key in ("forward", "backward"):
        expected = _by_path(truth, key)
        whole = max(expected.values()) if key == "forward" else sum(expected.values())
        large = {path: ns for path, ns in expected.items() if ns >= 0.03 * whole}
        assert len(large) >= 3
        for path, ns in large.items():
            assert rows[path][f"{key}_cpu_ns"] == pytest.approx(ns, rel=0.15), (key, path)
        found = sum(rows[path][f"{key}_cpu_ns"] for path in large)
        assert found == pytest.approx(sum(large.values()), rel=0.05), key


def _by_path(truth: list[Any], key: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for step in truth:
        for path, times in step.items():
            if path != "stages" and key in times:
                found[path] = found.get(path, 0) + sum(times[key])
    return found
