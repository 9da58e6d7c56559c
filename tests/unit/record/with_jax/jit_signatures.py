"""Why a function of JAX is compiled again, from the arguments of its calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from stepscope.record.contexts.jax_adapter import change_between, signature_of, why_again
from stepscope.record.run_shares.activity_log import NestedDurations

ARRAY = jnp.zeros((4, 2))


def step(batch: Any, rate: Any = 0.1, mode: Any = "train") -> None:
    """What is called."""


def change(before: tuple[Any, ...], now: tuple[Any, ...]) -> str:
    return change_between(signature_of(step, before, {}), signature_of(step, now, {}))


@pytest.mark.parametrize(
    ("before", "now", "why"),
    [
        ((ARRAY,), (ARRAY[:3],), "new shape of batch"),
        ((ARRAY,), (ARRAY.astype(jnp.bfloat16),), "new type of batch"),
        ((ARRAY, 0.1), (ARRAY, jnp.float32(0.1)), "new weak type of rate"),
        ((ARRAY, 0.1), (ARRAY, 1), "new type of rate"),
        ((ARRAY, 2), (ARRAY, 3), "new static argument rate"),
        ((ARRAY, 1, "train"), (ARRAY, 1, "test"), "new static argument mode"),
        ((ARRAY, None), (ARRAY, 0.1), "new shape of rate"),
        (({"x": ARRAY},), ({"y": ARRAY},), "new structure of batch"),
        (({"x": ARRAY},), ({"x": ARRAY, "y": ARRAY},), "new structure of batch"),
        (
            ({"x": ARRAY, "y": ARRAY},),
            ({"x": ARRAY[:3], "y": ARRAY[:3]},),
            "new shape of batch['x'] and 1 more",
        ),
        ((ARRAY,), (ARRAY,), "same arguments"),
    ],
)
def test_what_changed(before: tuple[Any, ...], now: tuple[Any, ...], why: str) -> None:
    assert change(before, now) == why


def test_arrays_of_numpy_are_like_those_of_jax() -> None:
    assert change((np.zeros((4, 2), np.float32),), (ARRAY,)) == "same arguments"


def test_a_donated_array_still_has_its_shape() -> None:
    donated = jnp.zeros(3)
    donated.delete()
    assert change((donated,), (jnp.zeros(4),)) == "new shape of batch"


def test_the_nearest_earlier_compilation_is_compared() -> None:
    known: deque[Any] = deque(maxlen=8)
    small, large = jnp.zeros(3), jnp.zeros(4)

    def compile_for(*arguments: Any) -> str:
        return why_again(known, signature_of(step, arguments, {}))

    assert compile_for(small, 1, "train") == ""
    assert compile_for(large, 1.5, "test") != ""
    assert compile_for(small, 1, "test") == "new static argument mode"


def test_arguments_without_a_signature_are_numbered() -> None:
    unnamed: Callable[..., None] = max
    before = signature_of(unnamed, (ARRAY, ARRAY), {})
    assert change_between(before, signature_of(unnamed, (ARRAY, ARRAY[:1]), {})) == ("new shape of args[1]")


def test_a_signature_is_kept_for_the_next_compilation() -> None:
    known: deque[Any] = deque(maxlen=8)
    for size in range(50):
        why_again(known, signature_of(step, (np.zeros(size),), {}))
    assert [signature["batch"].shape for signature in known] == [(size,) for size in range(42, 50)]


def test_a_duration_contains_those_reported_before_it() -> None:
    durations = NestedDurations()
    assert durations.own(2.0, 1.0) == 1.0
    assert durations.own(4.0, 1.0) == 1.0
    assert durations.own(5.0, 4.5) == 2.5  # began before both
    assert durations.own(9.0, 3.0) == 3.0  # began after it
