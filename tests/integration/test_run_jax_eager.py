"""Training loops without `jax.jit`: each iteration is one step with all of its operations."""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest
from test_run import write
from test_run_jax import recorded

if (os.environ.get("CI") != "true" or sys.version_info < (3, 11)) and not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

MODEL = """
import jax, jax.numpy as jnp, numpy as np
from jax import grad, value_and_grad

def loss(weights, x):
    for each in weights:
        x = jnp.tanh(x @ each)
    return (x ** 2).mean()

weights = [jnp.full((64, 64), 0.01) for _ in range(3)]
moments = [jnp.zeros((64, 64)) for _ in range(3)]
x = np.ones((32, 64), np.float32)
for step in range(45):
"""
DESCENT = "    weights = [each - 0.01 * one for each, one in zip(weights, gradients)]\n"
LOOPS = {
    "grad": "    gradients = grad(loss)(weights, x)\n" + DESCENT,
    "value_and_grad": "    value, gradients = jax.value_and_grad(loss)(weights, x)\n" + DESCENT,
    "momentum_and_log": """
    value, gradients = value_and_grad(loss)(weights, x)
    moments = [0.9 * each + one for each, one in zip(moments, gradients)]
    weights = [each - 0.01 * one for each, one in zip(weights, moments)]
    print(float(value))
""",
    "jitted_layers": """
    layer = jax.jit(lambda x, each: jnp.tanh(x @ each)) if step == 0 else layer
    def loss(weights, x):
        for each in weights:
            x = layer(x, each)
        return (x ** 2).mean()
    gradients = grad(loss)(weights, x)
"""
    + DESCENT,
    "jitted_update": """
    update = jax.jit(lambda weights, gradients: [
        each - 0.01 * one for each, one in zip(weights, gradients)
    ]) if step == 0 else update
    weights = update(weights, grad(loss)(weights, x))
""",
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_each_iteration_is_one_step(tmp_path: Path, loop: str) -> None:
    _, manifest, trace = recorded(tmp_path, str(write(tmp_path, MODEL + loop)))
    assert manifest["outcome"] == "complete"
    events = trace.events
    names, stages = events.text("name"), events.text("stage")
    steps = trace["steps"]["step"].tolist()
    assert len(steps) == 3
    gradients = events["step"][names.mask("stepscope.gradient")]
    kept = Counter(gradients[gradients >= 0].tolist())
    assert kept == dict.fromkeys(steps, 1)
    work = events.text("category").mask("cpu_op") & (events["scope"] >= 0)
    counts = Counter(events["step"][work].tolist())
    assert len({counts[step] for step in steps}) == 1
    assert counts[steps[0]] >= 9
    for stage in ("forward", "backward"):
        assert set(steps) <= set(events["step"][work & stages.mask(stage)].tolist())


def test_a_script_without_gradients_and_without_jit_has_no_steps(tmp_path: Path) -> None:
    text = MODEL + "    x = jnp.tanh(x @ weights[0])\n"
    from test_run import RUN, start

    done = start([*RUN, str(write(tmp_path, text))], tmp_path)
    assert "no function under jax.jit" in done.stderr
