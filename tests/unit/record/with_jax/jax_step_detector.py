"""Which compiled function ends a step of a JAX program: sequences of calls, and where steps end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record.jax.jax_step_detector import JaxStepDetector
from stepscope.record.jax.jit_calls import name_of


class Array:
    """What counts of an array."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.shape = (nbytes,)

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
    assert (loop.detector.boundary_name, loop.detector.steps, loop.detector.is_sure) == ("update", 4, True)


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


def epochs(loop: Loop, count: int, calls: int, state: bool = False) -> None:
    """Each trains in one call; then samples are predicted, or an environment steps, one by one."""
    params, turn = Array(1000), Array(900)
    for _ in range(count):
        params = loop.call("epoch", [params, Array(8)], Array(1000))
        for _ in range(calls):
            turn = loop.call("predict", [params, turn if state else Array(64)], Array(900))


@pytest.mark.parametrize(
    ("calls", "state"),
    [(1, False), (20, False), (200, False), (5000, False), (20, True), (200, True), (5000, True)],
)
def test_an_epoch_in_one_call_ends_the_step_however_much_is_predicted(calls: int, state: bool) -> None:
    """What was taken for a step before is none, once the epoch takes what it returned."""
    loop = Loop()
    epochs(loop, 1, calls, state)
    recorded = loop.detector.boundary
    epochs(loop, 3, calls, state)
    assert loop.detector.boundary_name == "epoch"
    assert recorded is loop.detector.boundary or loop.detector.surpasses(recorded)
    assert loop.ended[-2:] == ["epoch"] * 2
    assert loop.detector.step_is == (
        f"one call of epoch, which takes what it returned before; other calls: predict ({calls:,} per step)"
    )


def test_a_second_training_does_not_surpass_the_first() -> None:
    loop, first, second = Loop(), Array(1000), Array(1000)
    for _ in range(30):
        first = loop.call("pretrain", first, Array(1000))
    recorded = loop.detector.boundary
    for _ in range(500):
        second = loop.call("finetune", second, Array(1000))
    assert loop.detector.boundary_name == "finetune"
    assert not loop.detector.surpasses(recorded)


def test_a_gradient_outside_of_compiled_functions_trains() -> None:
    loop = Loop()
    for _ in range(4):
        loop.call("value_and_grad(loss)", Array(1000), (Array(4), Array(1000)))
    assert (loop.detector.is_sure, loop.detector.trains) == (True, True)
    assert loop.detector.step_is == "one call of value_and_grad(loss), which is outside of jax.jit"


def test_prediction_alone_is_said_to_train_nothing() -> None:
    loop = Loop()
    for _ in range(4):
        loop.call("predict", Array(1000), Array(4))
    assert not loop.detector.trains
    assert loop.detector.step_is == "one call of predict, which takes nothing that it returned before"


def summed(loop: Loop, lengths: list[int], parameters: bool = True) -> None:
    """Steps that sum gradients in a function, from zeros, and apply the sum outside of any."""
    for length in lengths:
        params, total = Array(1000), Array(1000)
        for _ in range(length):
            taken = [params, total, Array(64)] if parameters else [total, Array(64)]
            total, _ = loop.call("accumulate", taken, (Array(1000), Array(4)))


def gradients(loop: Loop, lengths: list[int]) -> None:
    """Steps that sum gradients outside of any function, and apply them there, too."""
    for length in lengths:
        params = Array(1000)
        for _ in range(length):
            loop.call("gradient", [params, Array(64)], (Array(4), Array(1000)))


@pytest.mark.parametrize("train", [summed, gradients])
@pytest.mark.parametrize("length", [2, 3, 4, 9, 64])
def test_micro_batches_of_equal_parameters_are_a_step(train: Any, length: int) -> None:
    """Known once the parameters change; a step begins with its first call."""
    loop = Loop()
    train(loop, [length])
    assert not loop.detector.is_sure
    train(loop, [length])
    loop.ended.clear()
    train(loop, [length] * 10)
    assert len(loop.ended) == 10
    assert (loop.detector.steps, loop.detector.is_sure) == (12, True)


@pytest.mark.parametrize("train", [summed, gradients])
def test_steps_may_have_different_numbers_of_micro_batches(train: Any) -> None:
    loop = Loop()
    train(loop, [4, 4])
    loop.ended.clear()
    train(loop, [4, 4, 4, 1, 4, 7])
    assert len(loop.ended) == 6


@pytest.mark.parametrize("length", [2, 3, 4, 9, 64])
def test_a_sum_without_parameters_shows_by_its_length(length: int) -> None:
    """Known from the third sum on."""
    loop = Loop()
    summed(loop, [length] * 2, parameters=False)
    loop.ended.clear()
    summed(loop, [length] * 10, parameters=False)
    assert loop.ended == ["accumulate"] * 10
    assert (loop.detector.steps, loop.detector.is_sure) == (12, True)


@pytest.mark.parametrize("lengths", [[5, 3, 4, 6, 2, 5, 9], [70] * 4, [1] * 30], ids=str)
def test_sums_of_irregular_lengths_show_no_steps(lengths: list[int]) -> None:
    """Each call is one, as if the state had been loaded from a checkpoint now and then."""
    loop = Loop()
    summed(loop, lengths, parameters=False)
    assert loop.ended == ["accumulate"] * sum(lengths)


def test_gradients_of_parameters_that_change_each_time_are_steps() -> None:
    loop = Loop()
    gradients(loop, [1] * 30)
    assert loop.ended == ["gradient"] * 30
    assert not loop.detector.is_sure


def test_a_sum_that_another_function_applies_is_part_of_its_step() -> None:
    loop, params = Loop(), Array(1000)
    for _ in range(10):
        total = Array(1000)
        for _ in range(4):
            total = loop.call("accumulate", [params, total], Array(1000))
        params = loop.call("apply", [params, total], Array(1000))
    assert loop.ended[-8:] == ["apply"] * 8
    assert loop.detector.is_sure


def test_metrics_that_begin_again_do_not_end_steps() -> None:
    """Parameters go on from call to call; their mean loss begins with zero at each log."""
    loop, params, mean = Loop(), [Array(1000) for _ in range(20)], Array(8)
    for step in range(60):
        mean = Array(8) if step % 5 == 0 else mean
        params, mean = loop.call("update", [params, mean], ([Array(1000) for _ in params], Array(8)))
    assert loop.ended == ["update"] * 60


@pytest.mark.parametrize("renewed", [5, 20, 10**9])
def test_a_target_network_does_not_end_steps(renewed: int) -> None:
    """Its parameters are shaped as those that are trained, and stay for many steps."""
    loop, params, target = Loop(), Array(1000), Array(1000)
    for step in range(60):
        target = params if step % renewed == 0 else target
        params = loop.call("update", [params, target, Array(64)], Array(1000))
    assert loop.ended == ["update"] * 60


def test_a_call_whose_result_is_discarded_ends_no_sum() -> None:
    """The function is compiled before the loop."""
    loop, params = Loop(), Array(1000)
    loop.call("update", [params, Array(64)], Array(1000))
    for _ in range(20):
        params = loop.call("update", [params, Array(64)], Array(1000))
    assert loop.ended == ["update"] * 21
    assert loop.detector.is_sure


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
