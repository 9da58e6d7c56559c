"""Batch sizes of JAX programs: memory as XLA assigns it, no torch, steps that wait for each other.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.batch_size import Plan, Result, Session
from stepscope.capture.batch_size.request import Effort
from stepscope.errors import BatchError

if not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

PLAN = Plan(
    extra=0, rounds=1, effort=Effort(warmup=1, memory=1, least=1, most=2, seconds=0), timeout_s=300
)
MODEL = """
import sys
import jax
import jax.numpy as jnp

def loss(weights, x):
    return jnp.tanh(x @ weights).sum()
"""
SCRIPT = f"""{MODEL}
batch_size = 48

@jax.jit
def update(weights, x):
    return weights - 0.1 * jax.grad(loss)(weights, x)

weights = jnp.ones((64, 32))
for step in range(40):
    weights = update(weights, jnp.ones((batch_size, 64)))
assert "torch" not in sys.modules
"""
WEIGHTS = 4 * 64 * 32


def profile(folder: Path, text: str) -> Result:
    path = folder / "train.py"
    path.write_text(text)
    with Session() as session:
        return session.profile(path, plan=PLAN)


def memory(result: Result) -> dict[int, int]:
    return {point.batch: point.bytes for point in result.profile.points}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Result:
    return profile(tmp_path_factory.mktemp("jax"), SCRIPT)


def test_memory_is_the_buffer_assignment_of_xla(measured: Result, tmp_path: Path) -> None:
    """Arguments, results and temporaries; a temporary holds `x @ weights` and its gradient."""
    for batch, size in memory(measured).items():
        arguments, results = WEIGHTS + 4 * batch * 64, WEIGHTS
        assert arguments + results < size <= arguments + results + 3 * 4 * batch * 32 + WEIGHTS
    assert measured.profile.memory is not None
    assert measured.profile.memory.linear


def test_it_needs_neither_torch_nor_a_breakdown(measured: Result) -> None:
    assert measured.breakdown is None
    assert measured.estimate is None
    assert measured.profile.device["type"] == "cpu"
    assert not any("estimate" in note for note in measured.profile.warnings)
    assert measured.to_json([96])["predictions"][0]["bytes"] > 0


def test_the_peak_has_kinds(measured: Result) -> None:
    assert measured.program_memory["state"] == WEIGHTS
    assert measured.program_memory["inputs"] == 4 * 48 * 64
    assert sum(measured.program_memory.values()) == memory(measured)[48]
    assert measured.to_json()["program_memory"] == measured.program_memory


def test_donated_arguments_count_once(tmp_path: Path) -> None:
    decay = SCRIPT.replace("0.1 * jax.grad(loss)(weights, x)", "x.mean()")
    donate = decay.replace("@jax.jit", "@jax.jit(donate_argnums=0)")
    for folder in ("kept", "donated"):
        (tmp_path / folder).mkdir()
    kept, donated = profile(tmp_path / "kept", decay), profile(tmp_path / "donated", donate)
    for batch, size in memory(donated).items():
        assert abs(size - (memory(kept)[batch] - WEIGHTS)) < 256  # padding


def test_arrays_that_no_program_takes_count_too(tmp_path: Path, measured: Result) -> None:
    """Such as a data set on the device."""
    larger = SCRIPT.replace("weights = jnp.ones", "data = jnp.ones(1000)\nweights = jnp.ones")
    for batch, size in memory(profile(tmp_path, larger)).items():
        assert size == memory(measured)[batch] + 4000


def test_provider_functions_may_use_jax(tmp_path: Path, measured: Result) -> None:
    providers = f"""{MODEL}
def stepscope_model_provider():
    return {{"weights": jnp.ones((64, 32))}}

def stepscope_input_provider(batch_size=48):
    return (jnp.ones((batch_size, 64)),)

def stepscope_iteration_provider(state):
    @jax.jit
    def update(weights, x):
        return weights - 0.1 * jax.grad(loss)(weights, x)

    def iteration(x):
        state["weights"] = update(state["weights"], x)

    return iteration
"""
    assert memory(profile(tmp_path, providers)) == memory(measured)


def test_a_script_without_a_compiled_step_says_so(tmp_path: Path) -> None:
    eager = SCRIPT.replace("@jax.jit\n", "").replace("0.1 * jax.grad(loss)(weights, x)", "x.mean()")
    with pytest.raises(BatchError, match=r"no function under jax\.jit was called repeatedly"):
        profile(tmp_path, eager)
