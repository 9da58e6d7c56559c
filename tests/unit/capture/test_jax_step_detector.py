"""Which compiled function ends a step of a JAX program: sequences of calls, and where steps end."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

if os.environ.get("CI") != "true" or sys.version_info < (3, 11):
    pytest.importorskip("jax")

from stepscope.capture.jax.jax_step_detector import JaxStepDetector
from stepscope.capture.jax.jit_calls import name_of


class Array:
    """What counts of an array."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def block_until_ready(self) -> None:
        """Is ready."""


class Loop:
    """Calls functions and remembers which call ended a step."""

    def __init__(self) -> None:
        self.detector = JaxStepDetector()
        self.ended: list[str] = []

    def call(self, name: str, inputs: Any, outputs: Any) -> Any:
        if self.detector.advance(name, inputs, outputs):
            self.ended.append(name)
        return outputs


def test_a_function_that_takes_what_it_returned_ends_a_step() -> None:
    loop, params = Loop(), Array(1000)
    for _ in range(4):
        params, _ = loop.call("update", [params, Array(10)], (Array(1000), Array(4)))
    assert loop.ended == ["update"] * 4
    assert (loop.detector.boundary_name, loop.detector.steps, loop.detector.is_sure) == (
        "update",
        4,
        True,
    )


def test_making_data_before_the_loop_is_no_step_once_something_trains() -> None:
    loop, params = Loop(), Array(1000)
    for _ in range(6):
        loop.call("make_images", Array(8), Array(50_000))
    assert not loop.detector.is_sure
    for _ in range(3):
        params = loop.call("update", params, Array(1000))
    assert (loop.detector.boundary_name, loop.detector.is_sure) == ("update", True)
    assert loop.ended[-2:] == ["update"] * 2


def test_state_that_is_small_ends_no_step() -> None:
    loop, params, mean = Loop(), Array(1000), Array(4)
    for _ in range(4):
        params = loop.call("update", params, Array(1000))
        mean = loop.call("running_mean", mean, Array(4))
    assert set(loop.ended) == {"update"}


def test_of_two_that_carry_state_the_rarer_ends_the_step() -> None:
    """Gradients of four micro-batches add up before they are applied."""
    loop, params, total = Loop(), Array(1000), Array(1000)
    for _ in range(4):
        for _ in range(4):
            total = loop.call("accumulate", [params, total], Array(1000))
        params = loop.call("apply", [params, total], Array(1000))
    assert loop.ended[-2:] == ["apply", "apply"]
    assert loop.detector.boundary_name == "apply"


def test_of_two_called_equally_often_the_last_in_the_turn_ends_the_step() -> None:
    loop, critic, generator = Loop(), Array(900), Array(1000)
    for _ in range(5):
        critic = loop.call("critic_step", critic, Array(900))
        generator = loop.call("generator_step", generator, Array(1000))
    assert loop.ended[-3:] == ["generator_step"] * 3


def test_where_nothing_carries_state_the_largest_ends_the_step_and_is_not_sure() -> None:
    loop = Loop()
    for _ in range(3):
        loop.call("scale", Array(10), Array(10))
        loop.call("gradients", Array(1000), Array(1000))
    assert loop.ended[-2:] == ["gradients"] * 2
    assert not loop.detector.is_sure


def named(module: str | None, qualname: str = "update") -> SimpleNamespace:
    return SimpleNamespace(__module__=module, __qualname__=qualname)


def test_what_jax_compiles_for_itself_has_no_name() -> None:
    assert name_of(named("model.train", "Trainer.fit.<locals>.update")) == "update"
    assert name_of(named("model.train", "Trainer.update")) == "Trainer.update"
    assert name_of(named("jax._src.numpy.ufuncs")) is None
    assert name_of(named(None)) is None


def test_what_was_compiled_ahead_of_time_goes_by_that() -> None:
    assert name_of(SimpleNamespace()) == "compiled"
