"""Parameters of modules, from the names that JAX gives a compiled function's arguments."""

from __future__ import annotations

from stepscope.facts.annotate.jax.parameters import parameter_sizes

NET = [("Net",), ("Net", "block_0"), ("Net", "block_0", "Dense_0"), ("Net", "head")]


def test_flax_names_the_path_below_the_model() -> None:
    arguments = [
        ("params['params']['block_0']['Dense_0']['kernel']", 12, 48),
        ("params['params']['block_0']['Dense_0']['bias']", 3, 12),
        ("params['params']['head']['kernel']", 5, 10),
        ("x", 99, 99),
    ]
    assert parameter_sizes(arguments, NET) == {
        ("Net",): (20, 70),
        ("Net", "block_0"): (15, 60),
        ("Net", "block_0", "Dense_0"): (15, 60),
        ("Net", "head"): (5, 10),
    }


def test_the_state_of_the_optimizer_does_not_count() -> None:
    """It has the paths of the parameters, twice."""
    path = "['params']['head']['kernel']"
    names = [f"state[0].mu{path}", f"state[0].nu{path}", f"params{path}"]
    sizes = parameter_sizes([(name, 5, 20) for name in names], NET)
    assert sizes[("Net",)] == (5, 20)


def test_haiku_writes_the_path_as_one_name() -> None:
    modules = [("block_0",), ("block_0", "up"), ("head",)]
    arguments = [("params['block_0/up']['w']", 12, 48), ("params['head']['b']", 3, 12)]
    assert parameter_sizes(arguments, modules) == {
        ("block_0",): (12, 48),
        ("block_0", "up"): (12, 48),
        ("head",): (3, 12),
    }


def test_numbered_arguments_tell_nothing() -> None:
    """As nnx, Equinox and Keras have them."""
    arguments = [("model.states[0][1]", 12, 48), ("dynamic['first'][0]", 3, 12), ("", 1, 4)]
    assert parameter_sizes(arguments, NET) == {}
    assert parameter_sizes([], NET) == {}
