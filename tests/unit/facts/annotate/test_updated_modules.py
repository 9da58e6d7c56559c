"""The modules of compiled updates: those whose parameters they update."""

from __future__ import annotations

from facts import module_of_events, of_events
from traced_steps import SITE, traced

from stepscope.trace.trace import Trace

LOSS = ["train.py:20 step", "train.py:18 loss_of"]
UPDATE = ["train.py:20 step", f"{SITE}/optax/_src/update.py:9 apply_updates"]
NET = [*LOSS, "model.py:9 Net.__call__"]
LINEAR = [*NET, f"{SITE}/equinox/nn/_linear.py:9 Linear.__call__"]
NORM = [*NET[:-1], "model.py:8 Net.__call__", f"{SITE}/equinox/nn/_normalisation.py:9 Norm.__call__"]


def scoped(*inputs: str) -> Trace:
    """A step of two layers with named scopes, and one update of these inputs."""
    return traced(
        ("up", "jit(step)/jvp(Net)/up/dot", LOSS),
        ("down", "jit(step)/jvp(Net)/down/dot", LOSS),
        ("grad_down", "jit(step)/transpose(jvp(Net))/down/dot", LOSS),
        ("grad_up", "jit(step)/transpose(jvp(Net))/up/dot", LOSS),
        ("update", "jit(step)/add", UPDATE),
        inputs={"update": inputs},
    )


def module_of(trace: Trace, name: str = "update") -> str | None:
    found: str | None = module_of_events(trace)[name]
    return found


def test_the_name_of_an_argument_holds_the_path() -> None:
    assert module_of(scoped("params['params']['up']['w']")) == "Net.up"
    assert module_of(scoped("state[0].mu['params']['up']['w']", "grad_up")) == "Net.up"


def test_without_a_name_the_gradient_decides() -> None:
    assert module_of(scoped("state[0][3]", "grad_down")) == "Net.down"


def test_what_takes_several_gradients_belongs_to_the_module_around_them() -> None:
    assert module_of(scoped("grad_down", "grad_up")) == "Net"


def test_an_update_of_unknown_parameters_belongs_to_the_model() -> None:
    assert module_of(scoped("state[0][3]")) == "Net"


def test_an_update_that_takes_nothing_has_no_module() -> None:
    """A step counter, a loss scale."""
    assert module_of(scoped()) is None


def numbered() -> Trace:
    """Equinox: arguments are numbered, modules are classes; two matrices of one layer, a norm."""
    weight, norm = 4, 6  # rows of frames, in the order of the stacks below
    arguments = [
        ("model[0]", 12, 48, "jit(step)/jvp()/dot", weight, True),
        ("model[1]", 3, 12, "jit(step)/jvp()/add", weight, True),
        ("model[2]", 5, 20, "jit(step)/jvp()/mul", norm, True),
        ("batch", 99, 396, "jit(step)/jvp()/dot", weight, False),
        ("state[0]", 12, 48, "", -1, True),
    ]
    return traced(
        ("update", "jit(step)/add", UPDATE),
        ("dot", "jit(step)/jvp()/dot", LINEAR),
        ("mul", "jit(step)/jvp()/mul", NORM),
        ("grad", "jit(step)/transpose(jvp())/dot", LINEAR),
        inputs={"update": ["model[2]", "state[3]"]},
        arguments=arguments,
    )


def test_a_numbered_argument_belongs_to_the_module_that_takes_it_first() -> None:
    assert module_of(numbered()) == "Net.Norm"


def test_numbered_parameters_are_those_that_a_gradient_updates() -> None:
    modules = numbered()["modules"].rows()
    sizes = {row["path"]: (row["parameters"], row["parameter_bytes"]) for row in modules}
    assert sizes == {"Net": (20, 80), "Net.Norm": (5, 20), "Net.Linear": (15, 60)}


def test_a_sum_of_gradients_over_devices_is_backward_and_of_their_module() -> None:
    """`jax.lax.pmean(gradients, "data")` under `pmap`; that of the loss takes no gradient."""
    trace = traced(
        ("up", "jit(step)/jvp(Net)/up/dot", LOSS),
        ("down", "jit(step)/jvp(Net)/down/dot", LOSS),
        ("grad_up", "jit(step)/transpose(jvp(Net))/up/dot", LOSS),
        ("sum", "jit(step)/psum", LOSS[:1]),
        ("loss", "jit(step)/psum", LOSS[:1]),
        ("fused", "jit(step)/psum", LOSS[:1]),
        inputs={"sum": ["grad_up"], "fused": ["grad_up", "params['params']['up']['w']"]},
    )
    assert of_events(trace, "stage")["sum"] == "backward"
    assert module_of(trace, "sum") == "Net.up"
    assert [of_events(trace, "stage")[name] for name in ("loss", "fused")] == ["optimizer"] * 2
