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
from stepscope.facts.annotate.modules.costs import module_costs
from stepscope.trace.trace import Trace

EXAMPLES = Path(__file__).parents[2] / "examples"
RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()"]

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

for step in range(12):
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
    command = [*RUN, "--no-shapes", "--steps", "5", "-o", str(out), str(script), str(truth)]
    subprocess.run(command, check=True, capture_output=True, cwd=folder)
    steps = json.loads(zipfile.ZipFile(out).read("manifest.json"))["steps_recorded"]
    times = json.loads(truth.read_text())
    return stepscope.open(out, cache=False), [times[step] for step in steps]


def operators(trace: Trace) -> tuple[np.ndarray, np.ndarray]:
    """Which events are operators in steps, and their own times."""
    events = trace.events
    inside = events.text("category").mask("cpu_op") & (events["step"] >= 0)
    return inside, events["self_ns"]


def usual_share(trace: Trace, part: np.ndarray, whole: np.ndarray) -> float:
    """The share of operator time, in the median of the steps: a pause falls into one of them."""
    step, (_, time) = trace.events["step"], operators(trace)
    sums = [np.bincount(step[rows], time[rows])[trace["steps"]["step"]] for rows in (part, whole)]
    return float(np.median(sums[0] / sums[1]))


def test_operator_time_has_a_stage(recorded: tuple[Trace, list[Any]]) -> None:
    trace, _ = recorded
    inside, _ = operators(trace)
    assert usual_share(trace, inside & (trace.events["stage"] >= 0), inside) >= 0.99


def test_model_time_has_a_module(recorded: tuple[Trace, list[Any]]) -> None:
    trace, _ = recorded
    inside, _ = operators(trace)
    for stage in ("forward", "backward"):
        rows = inside & trace.events.text("stage").mask(stage)
        assert usual_share(trace, rows & (trace.events["module"] >= 0), rows) >= 0.97, stage


def test_stages_last_as_long_as_the_script_measures(recorded: tuple[Trace, list[Any]]) -> None:
    # The script's time of optimizer.step() holds the recorder's own work at the end of each step.
    trace, truth = recorded
    runs = trace["stages"]
    stage = runs.text("stage")
    before = stage.mask("forward", "loss", "zero_grad", "data_loading")
    for name, rows in (("backward", stage.mask("backward")), ("forward and before", before)):
        found = np.bincount(runs["step"][rows], runs["cpu_ns"][rows])[trace["steps"]["step"]]
        expected = [step["stages"][name][0] for step in truth]
        assert np.median(found / expected) == pytest.approx(1, abs=0.08), name


def test_modules_take_as_long_as_their_own_hooks_measure(recorded: tuple[Trace, list[Any]]) -> None:
    """Every module of at least 3 % of the model's time, in the median of the steps.

    A pause of the machine between the script's clock and ours falls into one step only.
    """
    trace, truth = recorded
    paths = list(trace["modules"].text("path"))
    for key in ("forward", "backward"):
        expected = _by_path(truth, key)
        whole = np.max([np.median(times) for times in expected.values()])
        large = [path for path, times in expected.items() if np.median(times) >= 0.03 * whole]
        assert len(large) >= 3
        for path in large:
            found = _of_module(trace, key)[:, paths.index(path)]
            ratio = np.median(found / expected[path])
            assert ratio == pytest.approx(1, abs=0.15), (key, path)


def _of_module(trace: Trace, key: str) -> np.ndarray:
    """CPU time of each module in each step, ns, shape (steps, modules)."""
    parent, step = trace["modules"]["parent"], trace.events["step"]
    costs = (module_costs(trace, parent, step == number) for number in trace["steps"]["step"])
    return np.array([cost[f"{key}_cpu_ns"] for cost in costs])


def _by_path(truth: list[Any], key: str) -> dict[str, list[int]]:
    """The script's times of each module that it watched, ns, one a step."""
    watched = [path for path, times in truth[0].items() if key in times and path != "stages"]
    return {path: [sum(step[path][key]) for step in truth] for path in watched}
