"""Parameters of modules, from the names that JAX gives a compiled function's arguments."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.facts.annotate.jax.parameters import parameter_sizes
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.facts.annotate.modules.modules import _with_parameters
from stepscope.testing import drawn_trace

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


@pytest.mark.parametrize(
    ("names", "sizes"),
    [
        (["params['Net_0']['kernel']", "params['Net_0']['bias']", "x"], {"Net_0": (5, 20)}),  # by name
        (["a", "b", "c"], {"Net_0": (2, 8), "Net_1": (3, 12)}),  # by what uses them, if updated
    ],
)
def test_parameters_have_names_or_else_uses(names: list[str], sizes: dict[str, tuple[int, int]]) -> None:
    uses = [(0, 2, True), (1, 3, True), (0, 9, False)]
    arguments = [
        (name, n, 4 * n, "s", use, updated) for name, (use, n, updated) in zip(names, uses, strict=True)
    ]
    arguments += [("d", 7, 28, "s", -1, True)]  # of no module
    modules = [Module("Net_0", facts={"a": 1}), Module("Net_1"), Module("Net_2")]
    evidence = Evidence("scopes", modules, np.zeros(0, np.int32), of_origin=lambda scope, frame: frame)
    trace = drawn_trace("main | 0 1 | a", properties={"arguments": arguments})
    found = {module.path: dict(module.facts) for module in _with_parameters(trace, evidence).modules}
    expected = {path: {"parameters": n, "parameter_bytes": size} for path, (n, size) in sizes.items()}
    expected = {"Net_0": {}, "Net_1": {}, "Net_2": {}} | expected
    assert found == {**expected, "Net_0": {"a": 1, **expected["Net_0"]}}
