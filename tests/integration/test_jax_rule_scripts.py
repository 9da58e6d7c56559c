"""A JAX script with each defect that a CPU can show: the rule has its line, and is silent without.

The script is recorded once without any defect, and once with each. Rules that need a quiet machine
or a device are tested on a recorded profile (`tests/golden/jax`) and on drawn steps.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
from test_run import RUN
from warm_python import JAX, run_warm

import stepscope
from stepscope.analyze import RULES, Finding, RuleContext, apply_rules

if not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

SCRIPT = """
import io
import pickle
import sys
import time
import jax
import jax.numpy as jnp
import numpy as np

(DEFECT,) = sys.argv[1:]


def load_batch():
    with jax.profiler.TraceAnnotation("load_batch"):
        if DEFECT == "input_bound":
            time.sleep(0.2)
        return np.ones((256, 512), np.float32)


def loss_of(params, x):
    loss = ((jnp.tanh(x @ params["a"]) @ params["b"]) ** 2).mean()  # frequent_evaluation
    if DEFECT == "host_callbacks":
        jax.debug.callback(lambda value: None, loss)  # host_callbacks
    return loss


def train_step(params, x):
    loss, gradients = jax.value_and_grad(loss_of)(params, x)  # missing_donation
    if DEFECT == "copy_fusions":
        params["kept"] = params["kept"].T  # copy_fusions
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), loss


@jax.jit
def evaluate(params, x):
    return loss_of(params, x)


step = jax.jit(train_step, donate_argnums=() if DEFECT == "missing_donation" else 0)
params = {"a": jnp.ones((512, 512)), "b": jnp.ones((512, 512))}
if DEFECT == "copy_fusions":
    params["kept"] = jnp.ones((2048, 2048))
for number in range(24):
    x = load_batch()
    params, loss = step(params, x)
    loss.block_until_ready()
    if DEFECT == "small_programs":
        for _ in range(60):
            loss = loss * 0.9  # small_programs
    if DEFECT == "frequent_evaluation":
        for _ in range(6):
            evaluate(params, np.ones((512, 512), np.float32)).block_until_ready()
    if DEFECT == "checkpoint_in_loop":
        for _ in range(20):
            pickle.dump(jax.device_get(params), io.BytesIO())
"""
DEFECTS = (
    "checkpoint_in_loop",
    "copy_fusions",
    "frequent_evaluation",
    "host_callbacks",
    "input_bound",
    "missing_donation",
    "small_programs",
)


def findings(folder: Path, defect: str, text: str = SCRIPT) -> dict[str, Finding]:
    script, capture = folder / "train.py", folder / f"{defect}.stepscope"
    script.write_text(text)
    command = [*RUN, "--warmup", "4", "--steps", "4", "-o", capture, script, defect]
    done = run_warm(command, folder, modules=JAX)
    assert done.returncode == 0, done.stderr
    context = RuleContext(stepscope.open(capture, cache=False))
    return {found.rule: found for found in apply_rules(context, RULES)}


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finding]:
    return findings(tmp_path_factory.mktemp("clean"), "none")


@pytest.mark.parametrize("rule", DEFECTS)
def test_the_rule_fires_with_its_line(rule: str, tmp_path: Path) -> None:
    found = findings(tmp_path, rule)
    marked = [number for number, line in enumerate(SCRIPT.splitlines(), 1) if f"# {rule}" in line]
    assert rule in found, sorted(found)
    if marked:
        lines = [one.line for one in found[rule].evidence if one.file.endswith("train.py")]
        assert marked[0] in lines


@pytest.mark.parametrize("rule", DEFECTS)
def test_the_rule_is_silent_without_the_defect(rule: str, clean: dict[str, Finding]) -> None:
    assert rule not in clean or clean[rule].certain == 0  # what other tests at the same time explain


PRIVATE = """
import sys
import jax
import jax.numpy as jnp
import numpy as np

(UPDATE,) = sys.argv[1:]
LAYERS, WIDTH, BATCH = 24, 128, 4


def loss_of(weights, x):
    for weight in weights:
        x = jnp.tanh(x @ weight)
    return (x**2).mean()


def clipped(gradients):
    norm = jnp.sqrt(sum((one**2).sum() for one in gradients))
    return [one * jnp.minimum(1, 1 / norm) for one in gradients]


def momentum_update(weight, mean, gradient):
    mean = 0.9 * mean + gradient  # optimizer_loop
    return weight - 0.1 * mean / (jnp.sqrt(mean**2) + 1e-8), mean  # optimizer_loop


@jax.jit
def train_step(weights, means, x):
    of_each = jax.vmap(jax.grad(loss_of), in_axes=(None, 0))(weights, x)
    gradients = [one.mean(0) for one in jax.vmap(clipped)(of_each)]
    if UPDATE == "plain":
        return [one - 0.1 * gradient for one, gradient in zip(weights, gradients)], means
    made = [momentum_update(*one) for one in zip(weights, means, gradients)]
    return [one for one, _ in made], [mean for _, mean in made]


weights = [jnp.ones((WIDTH, WIDTH)) / WIDTH for _ in range(LAYERS)]
means = [jnp.zeros((WIDTH, WIDTH)) for _ in range(LAYERS)]
for _ in range(24):
    weights, means = train_step(weights, means, np.ones((BATCH, WIDTH), np.float32))
    jax.block_until_ready(weights)
"""


def test_clipping_gradients_of_single_examples_is_no_update(tmp_path: Path) -> None:
    """24 weights with momentum take 48 small operations, without it 24."""
    found = findings(tmp_path, "momentum", PRIVATE)
    marked = [line for line in PRIVATE.splitlines() if "# optimizer_loop" in line]
    evidence = found["optimizer_loop"].evidence
    assert {PRIVATE.splitlines()[(one.line or 0) - 1] for one in evidence} == set(marked)
    assert "optimizer_loop" not in findings(tmp_path, "plain", PRIVATE)
