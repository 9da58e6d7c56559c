"""`stepscope run` on Keras with JAX: `model.fit`, in a real process."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import stepscope
from stepscope.read.shared import parse_json
from stepscope.trace.trace import Trace

if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("keras"):
    pytest.skip("needs keras", allow_module_level=True)

BATCHES, EPOCHS = 12, 2
SCRIPT = f"""
import os
import time
os.environ["KERAS_BACKEND"] = "jax"
import keras
import numpy as np


class Block(keras.layers.Layer):
    def __init__(self, width, **options):
        super().__init__(**options)
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.up = keras.layers.Dense(4 * width, activation="gelu", name="up")
        self.down = keras.layers.Dense(width, name="down")

    def call(self, x):
        return x + self.down(self.up(self.norm(x)))


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return {BATCHES}

    def __getitem__(self, index):
        time.sleep(0.05)
        return np.ones((32, 128), np.float32), np.zeros(32, np.int32)


inputs = keras.Input((128,))
x = keras.layers.Dense(128, name="stem")(inputs)
x = Block(128, name="first")(x)
x = Block(128, name="second")(x)
model = keras.Model(inputs, keras.layers.Dense(10, name="head")(x), name="net")
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
model.fit(Batches(), epochs={EPOCHS}, verbose=0)
print(model.count_params())
"""


def recorded(folder: Path, *options: str) -> tuple[str, dict[str, Any]]:
    """What the script prints when it is recorded, and the manifest."""
    (folder / "train.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "stepscope", "run", *options, "train.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(folder / "train.stepscope") as archive:
        return done.stdout, parse_json(archive.read("manifest.json").decode())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Trace]:
    """The number of parameters as Keras counts them, and the steps."""
    folder = tmp_path_factory.mktemp("keras")
    printed, manifest = recorded(folder, "--warmup", "4", "--steps", "4")
    assert manifest["outcome"] == "complete"
    return int(printed), stepscope.open(folder / "train.stepscope", cache=False, as_recorded=True)


def test_layers_have_the_names_that_the_user_gave_them(trained: tuple[int, Trace]) -> None:
    """With parameters that add up to those of the model."""
    count, trace = trained
    parameters = {row["path"]: row["parameters"] for row in trace["modules"].rows()}
    blocks = ("first", "second")
    layers = {f"{block}.{name}" for block in blocks for name in ("norm", "up", "down")}
    assert {"stem", "head", *blocks, *layers} <= set(parameters)
    assert sum(parameters[name] for name in ("stem", "head", *blocks)) == count


def test_each_step_has_the_work_of_all_stages(trained: tuple[int, Trace]) -> None:
    """On XLA's threads, while Keras waits for the next batch."""
    _, trace = trained
    rows = [row for row in trace.events.rows() if row["scope"] and row["step"] is not None]
    for step in trace["steps"]["step"].tolist():
        stages = {row["stage"] for row in rows if row["step"] == step}
        assert {"forward", "loss", "backward", "optimizer"} <= stages


def test_batches_are_loaded_where_keras_waits_for_them(trained: tuple[int, Trace]) -> None:
    _, trace = trained
    loading = trace.events.text("stage").mask("data_loading")
    names = trace.events.text("name").mask("enumerate(keras)#next")
    for step in trace["steps"]["step"].tolist():
        rows = loading & names & (trace.events["step"] == step)
        assert trace.events["duration_ns"][rows].max() >= 50e6
    assert "data_loading" in set(trace["stages"].text("stage"))


def test_each_batch_is_a_step(tmp_path: Path) -> None:
    """After the first: its results show which function trains."""
    _, manifest = recorded(tmp_path, "--warmup", "1000")
    assert manifest["steps_seen"] == EPOCHS * BATCHES - 1
