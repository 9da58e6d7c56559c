"""Batch sizes of JAX programs: memory as XLA assigns it, no torch, steps that wait for each other.

Nothing here looks at how long anything took.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from stepscope.errors import BatchError
from stepscope.models.batch_size import Plan, Result, Session
from stepscope.models.devices import Wanted, parse_targets, project, read_prices
from stepscope.record.batch_size.request import Effort

if not find_spec("jax"):
    pytest.skip("needs jax", allow_module_level=True)

pytestmark = pytest.mark.usefixtures("jax_compiles_once")

SHORT = Effort(warmup=1, memory=1, least=1, most=2, seconds=0)
PLAN = Plan(points=3, extra=0, rounds=1, effort=SHORT, timeout_s=300)
LONGER = replace(PLAN, effort=Effort(warmup=2, memory=1, least=3, most=6, seconds=0))
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


def profile(folder: Path, text: str, plan: Plan = PLAN) -> Result:
    path = folder / "train.py"
    path.write_text(text)
    return SESSIONS[-1].profile(path, plan=plan)


@pytest.fixture(scope="module", autouse=True)
def session() -> Iterator[None]:
    """One measuring process for all tests: it imports JAX once."""
    with Session() as own:
        SESSIONS.append(own)
        yield
    SESSIONS.pop()


SESSIONS: list[Session] = []


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


def test_jax_is_imported_once_for_all_batch_sizes(tmp_path: Path) -> None:
    assert memory(profile(tmp_path, f"import sys\nassert 'jax' in sys.modules\n{SCRIPT}"))


def test_other_devices_are_predicted_from_its_operations(tmp_path: Path) -> None:
    targets = parse_targets("H100,L4", read_prices(None))
    answer = project(profile(tmp_path, SCRIPT), targets, Wanted((48, 480)))
    assert [row.name for row in answer.devices] == ["H100", "L4"]
    assert answer.known > 0.9
    for row in answer.devices:
        small, large = row.predictions
        assert 0 < small.ms.value <= large.ms.value
        assert large.bytes is not None
        assert large.bytes.value > 4 * 480 * 64


@pytest.mark.parametrize(
    ("taken", "samples"),
    [
        ("jnp.ones((batch_size, 64))", 1),
        ("jnp.ones((3 * batch_size, 64))", 3),
        ("np.ones((batch_size, 64), np.float32)", 1),
        ("np.ones((100, 64), np.float32)", 1),  # no batch is seen
    ],
)
def test_samples_are_those_in_the_arguments(tmp_path: Path, taken: str, samples: int) -> None:
    text = SCRIPT.replace("jnp.ones((batch_size, 64))", taken)
    result = profile(tmp_path, text.replace("import sys\n", "import sys\nimport numpy as np\n"))
    assert result.profile.samples_per_batch == samples


ACCUMULATION = {
    "python_loop": (
        """
gradient = jax.jit(jax.grad(loss))

@jax.jit
def update(weights, total):
    return weights - 0.1 * total

weights = jnp.ones((64, 32))
for step in range(40):
    total = jnp.zeros((64, 32))
    for _ in range(4):
        total = total + gradient(weights, jnp.ones((batch_size, 64)))
    weights = update(weights, total)
""",
        4,
    ),
    "scan_over_parts_of_a_batch": (
        """
@jax.jit
def update(weights, parts):
    add = lambda total, x: (total + jax.grad(loss)(weights, x), None)
    return weights - 0.1 * jax.lax.scan(add, jnp.zeros_like(weights), parts)[0]

weights = jnp.ones((64, 32))
for step in range(40):
    weights = update(weights, np.ones((4, batch_size // 4, 64), np.float32))
""",
        1,
    ),
    "scan_over_micro_batches": (
        """
@jax.jit
def update(weights, inputs, targets):
    def add(total, batch):
        x, y = batch
        gradient = jax.grad(lambda w: ((x @ w).sum(1) - y).sum())(weights)
        return total + gradient, None
    return weights - 0.1 * jax.lax.scan(add, jnp.zeros_like(weights), (inputs, targets))[0]

weights = jnp.ones((64, 32))
for step in range(40):
    inputs = np.ones((4, batch_size, 64), np.float32)
    weights = update(weights, inputs, np.ones((4, batch_size), np.float32))
""",
        4,
    ),
    "sum_kept_by_a_function": (
        """
@jax.jit(donate_argnums=1)
def accumulate(weights, total, x):
    value, gradient = jax.value_and_grad(loss)(weights, x)
    return total + gradient, value

weights = jnp.ones((64, 32))
for step in range(60):
    total = jnp.zeros((64, 32))
    for _ in range(4):
        total, value = accumulate(weights, total, np.ones((batch_size, 64), np.float32))
    weights = weights - 0.1 * total
""",
        4,
    ),
    "nothing_but_gradients_in_a_function": (
        """
gradient = jax.jit(jax.grad(loss))
weights = jnp.ones((64, 32))
for step in range(60):
    parts = [gradient(weights, np.ones((batch_size, 64), np.float32)) for _ in range(4)]
    weights = weights - 0.1 * sum(parts)
""",
        4,
    ),
    "counter_in_the_state": (
        """
@jax.jit
def update(state, x):
    weights, total, count = state
    total = total + jax.grad(loss)(weights, x)
    now = count % 4 == 3
    weights = jnp.where(now, weights - 0.1 * total, weights)
    return weights, jnp.where(now, 0, total), count + 1

state = jnp.ones((64, 32)), jnp.zeros((64, 32)), 0
for step in range(40):
    state = update(state, np.ones((batch_size, 64), np.float32))
""",
        1,
    ),
    "data_set_on_the_device": (
        """
@jax.jit
def update(weights, data, rows):
    return weights - 0.1 * jax.grad(loss)(weights, data[rows])

weights, data = jnp.ones((64, 32)), jnp.ones((480, 64))
for step in range(40):
    weights = update(weights, data, np.arange(batch_size))
""",
        1,
    ),
}


@pytest.mark.parametrize(("loop", "samples"), ACCUMULATION.values(), ids=ACCUMULATION)
def test_micro_batches_of_a_step_add_up(tmp_path: Path, loop: str, samples: int) -> None:
    """Of a counter in the state, as that of `optax.MultiSteps`, each call is a step."""
    model = SCRIPT[: SCRIPT.index("@jax.jit")].replace("import sys\n", "import numpy as np\n")
    assert profile(tmp_path, model + loop, LONGER).profile.samples_per_batch == samples


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
