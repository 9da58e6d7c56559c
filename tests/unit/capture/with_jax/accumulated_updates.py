"""Which calls of a function update its parameters, from the values that it returns."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import pytest

from stepscope.capture.jax.accumulated_updates import AccumulatedUpdates
from stepscope.capture.jax.jax_step_detector import JaxStepDetector


class MultiStepsState(NamedTuple):
    mini_step: Any
    acc_grads: Any


def results(call: int, every: int, **of: Any) -> dict[str, Any]:
    """What a call returns that updates parameters at each `every`-th call, the first ones not."""
    done, left = divmod(call + 1, every)
    return {
        "params": jnp.full(4, 1.0 + done),
        "sum": jnp.full(4, float(left)),
        "frozen": jnp.ones(4),
        "loss": jnp.float32(call),
        **of,
    }


def followed(outputs: Any, calls: int = 40) -> AccumulatedUpdates:
    updates = AccumulatedUpdates()
    for call in range(calls):
        updates.follow(outputs(call))
    return updates


@pytest.mark.parametrize("every", [2, 3, 4, 7, 16])
@pytest.mark.parametrize("resumed", [0, 1, 5])
def test_parameters_that_change_when_the_sum_begins_again_are_updated_then(
    every: int, resumed: int
) -> None:
    updates = followed(lambda call: results(call + resumed, every))
    begins = [call for call in range(40) if updates.begins(call)]
    assert updates.calls_per_update == every
    assert begins == [call for call in range(40) if (call + resumed) % every == 0]


def test_a_counter_is_evidence_too() -> None:
    def outputs(call: int) -> dict[str, Any]:
        return results(call, 3, sum=jnp.full(4, call), count=jnp.int32((call + 1) % 3))

    assert followed(outputs).calls_per_update == 3


def test_the_counter_of_optax_needs_no_other_evidence() -> None:
    def outputs(call: int) -> Any:
        large = jnp.full(1 << 19, call)
        return large, MultiStepsState(jnp.int32((call + 1) % 5), large)

    assert followed(outputs).calls_per_update == 5


@pytest.mark.parametrize(
    "other",
    [
        lambda call: {"params": jnp.full(4, call), "sum": jnp.full(4, call)},
        lambda call: {"params": jnp.full(4, call), "batch": jnp.int32(call % 4)},
        lambda call: {"params": jnp.full(4, call), "target": jnp.full(4, call // 4)},
        lambda call: {"params": jnp.full(4, call), "frozen": jnp.ones(4)},
        lambda call: {"params": jnp.full(4, call), "state": MultiStepsState(jnp.int32(0), 0)},
        lambda call: {"loss": 0.5, "name": "text"},
        lambda call: (),
    ],
    ids=["training", "index of a batch", "target network", "frozen", "every call", "none", "empty"],
)
def test_other_functions_update_at_each_call(other: Any) -> None:
    assert followed(lambda call: other(float(call)), 140).calls_per_update == 1


def test_most_functions_are_followed_for_a_few_calls_only() -> None:
    updates = followed(lambda call: {"params": jnp.full(4, float(call)), "n": jnp.int32(call)}, 4)
    assert not updates.may_accumulate


@pytest.mark.parametrize("every", [2, 4])
def test_such_calls_are_one_step(every: int) -> None:
    detector, state, ended = JaxStepDetector(), results(-1, every), []
    for call in range(24):
        made = results(call, every)
        if detector.advance("step", state, made):
            ended.append(call)
        state = made
    later = [call for call in ended if call > 2 * every]
    assert later == [call for call in range(2 * every + 1, 24) if call % every == 0]
    assert detector.is_sure
    assert detector.steps == 24 // every
    assert detector.step_is == f"{every} calls of step, the last of which updates the parameters"
