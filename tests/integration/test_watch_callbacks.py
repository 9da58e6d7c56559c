"""The callbacks and metrics of the real frameworks: their loggers get the times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from stepscope.read.watched_run import read_watched_run

SCRIPTS = {
    "transformers": """
import json, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from stepscope import callbacks

logged = []
class Reporter(TrainerCallback):
    def on_log(self, args, state, control, logs, **kwargs):
        logged.append(dict(logs))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def forward(self, x, labels=None):
        return {"loss": self.layer(x).square().mean()}

data = [{"x": torch.ones(8), "labels": torch.zeros(1)}] * 240
options = {"report_to": [], "save_strategy": "no", "use_cpu": True, "disable_tqdm": True}
arguments = TrainingArguments("out", logging_steps=10, num_train_epochs=1, **options)
trainer = Trainer(Model(), arguments, train_dataset=data, callbacks=[Reporter()])
callbacks.watch_trainer(trainer, "run.watch")
trainer.evaluate(data[:8])  # logs, too
trainer.train()
json.dump([metrics for metrics in logged if "loss" in metrics], open("logged.json", "w"))
""",
    "lightning": """
import json, lightning, torch
from lightning.pytorch.loggers.logger import DummyLogger
from stepscope import callbacks

class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)
    def training_step(self, batch, index):
        return self.layer(batch).square().mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

logged = []
class Logger(DummyLogger):
    def log_metrics(self, metrics, step):
        logged.append(metrics)

data = torch.utils.data.DataLoader(torch.ones(240, 8), batch_size=8)
shown = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
watch = callbacks.lightning_callback("run.watch")
options = {"callbacks": [watch], "logger": Logger(), "accelerator": "cpu", **shown}

class Fails(Model):
    def validation_step(self, batch, index):
        raise ValueError("of the program, before it trains")

try:
    lightning.Trainer(max_epochs=1, **options).fit(Fails(), data, data)
except ValueError as error:
    assert "of the program" in str(error)
lightning.Trainer(max_epochs=1, log_every_n_steps=0, **options).fit(Model(), data)
assert logged == []
trainer = lightning.Trainer(max_epochs=1, log_every_n_steps=10, **options)
trainer.fit(Model(), data)
json.dump(logged, open("logged.json", "w"))
""",
    "accelerate": """
import json, stepscope, torch
from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

logged = []
class Tracker(GeneralTracker):
    name, requires_logging_directory, tracker = "kept", False, None
    def store_init_configuration(self, values): ...
    def log(self, values, step=None, **kwargs):
        logged.append(values)

accelerator = Accelerator(cpu=True, log_with=Tracker())
accelerator.init_trackers("run")
model = torch.nn.Linear(8, 8)
data = torch.utils.data.DataLoader(torch.ones(240, 8), batch_size=8)
model, optimizer, data = accelerator.prepare(model, torch.optim.SGD(model.parameters(), 0.1), data)
with stepscope.watch("run.watch") as watched:
    for step, batch in enumerate(data, 1):
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            accelerator.log(watched.metrics(), step)
json.dump(logged, open("logged.json", "w"))
""",
    "keras": """
import json, os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy
from stepscope import callbacks

model = keras.Sequential([keras.layers.Dense(8)])
model.compile("sgd", "mse")
options = {"epochs": 3, "batch_size": 8, "verbose": 0, "callbacks": [callbacks.keras_callback("run.watch")]}
class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise ValueError("of the program")

try:
    both = [*options["callbacks"], Fails()]
    model.fit(numpy.zeros((80, 8)), numpy.zeros((80, 8)), **options | {"callbacks": both})
except ValueError as error:
    assert "of the program" in str(error)
history = model.fit(numpy.zeros((80, 8)), numpy.zeros((80, 8)), **options).history
json.dump([dict(zip(history, row)) for row in zip(*history.values())], open("logged.json", "w"))
""",
}


@pytest.mark.full
@pytest.mark.parametrize("framework", SCRIPTS)
def test_the_loggers_of_a_framework_get_the_times(framework: str, tmp_path: Path) -> None:
    if os.environ.get("CI") != "true" and not find_spec(framework):
        pytest.skip(f"needs {framework}")
    subprocess.run([sys.executable, "-c", SCRIPTS[framework]], cwd=tmp_path, check=True, capture_output=True)
    logged: list[dict[str, Any]] = json.loads((tmp_path / "logged.json").read_text())
    assert [float(row["stepscope/steps"]) for row in logged][1:] == [10, 10][: len(logged) - 1]
    for row in logged:
        assert float(row["stepscope/cpu_ms"]) > 0
        assert 0 <= float(row.get("stepscope/backward_ms", 0)) < float(row["stepscope/step_ms"])
    assert ("stepscope/backward_ms" in logged[0]) == (framework != "keras")
    assert (tmp_path / "run.watch").exists()


# Each saves three times, at the line that says so, and times that itself.
SAVES = {
    "safetensors": """
from safetensors.torch import save_file  # by name, before it is watched
with stepscope.watch("run.watch"):
    train(lambda: save_file(model.state_dict(), "model.safetensors"))  # saves
""",
    "torch": """
import torch.distributed.checkpoint as dcp
with stepscope.watch("run.watch"):
    train(lambda: dcp.save({"model": model.state_dict()}, checkpoint_id="saved"))  # saves
""",
    "torch, in the background": """
import torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo", init_method="file:///tmp/unused" + str(os.getpid()), rank=0, world_size=1)
running, states = [], {"model": model.state_dict()}
with stepscope.watch("run.watch"):
    train(lambda: running.append(dcp.async_save(states, checkpoint_id="saved")))  # saves
running[-1].result()
""",
    "transformers": """
from transformers import BertConfig, BertModel
saved = BertModel(BertConfig(vocab_size=99, hidden_size=64, num_hidden_layers=1, num_attention_heads=2))
with stepscope.watch("run.watch"):
    train(lambda: saved.save_pretrained("saved"))  # saves
""",
    "peft": """
from peft import LoraConfig, get_peft_model
saved = get_peft_model(torch.nn.Sequential(torch.nn.Linear(256, 256)), LoraConfig(target_modules=["0"]))
with stepscope.watch("run.watch"):
    train(lambda: saved.save_pretrained("saved"))  # saves
""",
    "orbax": """
import jax, jax.numpy as jnp, orbax.checkpoint as ocp
checkpointer, weights = ocp.StandardCheckpointer(), jnp.ones((256, 256))
step = jax.jit(lambda w: w * 0.5)
def save(number):
    checkpointer.save(os.path.abspath(f"saved{number}"), {"w": weights})  # saves
    checkpointer.wait_until_finished()  # saves
with stepscope.watch("run.watch"):
    for number in range(1, 31):
        weights = step(weights)
        timed(lambda: save(number)) if number % 10 == 0 else None
""",
}
SAVING = """
import json, os, stepscope, sys, time, torch
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
optimizer = torch.optim.Adam(model.parameters())
spent = []
def timed(save):
    begun = time.perf_counter()
    save()
    spent.append(time.perf_counter() - begun)
def train(save):
    for number in range(1, 31):
        optimizer.zero_grad()
        model(torch.ones(8, 256)).square().mean().backward()
        optimizer.step()
        timed(save) if number % 10 == 0 else None
"""


@pytest.mark.full
@pytest.mark.parametrize("library", SAVES)
def test_what_a_library_saves_counts_whole(library: str, tmp_path: Path) -> None:
    """By its own function, whose work around what it calls belongs to the checkpoint."""
    if not find_spec(library.partition(",")[0]):
        pytest.skip(f"needs {library}")
    text = f"{SAVING}{SAVES[library]}json.dump(spent, open('spent.json', 'w'))\n"
    (tmp_path / "train.py").write_text(text)
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True)
    places = read_watched_run(tmp_path / "run.watch").facts.places
    saved = [place for place in places if place.kind == "checkpoint"]
    lines = [text.splitlines()[place.line - 1] for place in saved]
    assert saved
    assert all("# saves" in line for line in lines)
    assert {place.count for place in saved} == {3}
    spent_s: list[float] = json.loads((tmp_path / "spent.json").read_text())
    total_s = 1e-9 * sum(place.total_ns for place in saved)
    assert 0.5 * sum(spent_s) <= total_s <= sum(spent_s)  # others may have the core in between


CHECK = """
from importlib import import_module
from importlib.util import find_spec
from stepscope.record.run_shares.activity_hooks import _OF_LIBRARIES
for module, _, holder, names in _OF_LIBRARIES:
    if find_spec(module.partition(".")[0]):
        found = import_module(module)
        found = getattr(found, holder) if holder else found
        print(*(f"{module}: no {name}" for name in names if not hasattr(found, name)), sep="\\n", end="")
"""


@pytest.mark.full
def test_the_functions_by_which_libraries_save_and_evaluate_have_these_names() -> None:
    done = subprocess.run([sys.executable, "-c", CHECK], check=True, capture_output=True, text=True)
    assert done.stdout == ""
