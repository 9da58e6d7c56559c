"""Shares of a run drawn as activities of known length, in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from stepscope.facts.summary.run_shares import run_lines, run_shares
from stepscope.record.run_shares.activity_log import Activity, ActivityLog, Durations, SteppingOptimizer
from stepscope.record.run_shares.run_shares import RunClock, describe, unrecorded_training
from stepscope.record.unreplaced import time

Facts = dict[str, Any]
BEGIN = 7_000_000_000  # a clock begins anywhere


class DrawnRun:
    """A run whose clock only the drawing advances."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ns = BEGIN
        monkeypatch.setattr(time, "perf_counter_ns", lambda: self.ns)
        self.log = ActivityLog()
        self.places: dict[str, Activity] = {}
        self.optimizers: dict[int, SteppingOptimizer] = {}

    def ms(self, length: float) -> DrawnRun:
        self.ns += round(length * 1e6)
        return self

    def at(self, kind: str, name: str, purpose: str | None) -> Activity:
        new = Activity(kind, name, "train.py", len(self.places) + 1, purpose)
        return self.places.setdefault(name, new)

    def backward(self, length: float) -> DrawnRun:
        self.log.begin_backward()
        self.ms(length)
        self.log.end_backward()
        return self

    def optimizer(self, length: float, which: int = 0, closure: float = 0) -> DrawnRun:
        stepping = self.stepping(which)
        self.log.begin_step(stepping)
        self.backward(closure)
        self.ms(length)
        self.log.end_step(stepping)
        return self

    def stepping(self, which: int) -> SteppingOptimizer:
        place = Activity("optimizer", "train", "train.py", 8)
        new = SteppingOptimizer("Adam", place, len(self.optimizers) + 1)
        return self.optimizers.setdefault(which, new)

    def step(self, forward: float = 3, backward: float = 5, optimizer: float = 2, which: int = 0) -> DrawnRun:
        return self.forward(forward).backward(backward).optimizer(optimizer, which)

    def train(self, which: int, steps: int, forward: float = 3) -> DrawnRun:
        """One training of several: steps of 7 ms and a forward pass."""
        for _ in range(steps):
            self.step(forward, which=which)
        return self

    def forward(self, length: float) -> DrawnRun:
        self.log.model_called()
        return self.ms(length)

    def block(
        self, length: float, name: str = "main", purpose: str | None = None, saves: float = 0
    ) -> DrawnRun:
        place = self.at("no_grad", name, purpose)
        self.log.begin(place)
        self.ms(length)
        if saves:
            self.save(saves)
        self.log.end(place)
        return self

    def save(self, length: float) -> DrawnRun:
        place = self.at("saving", "save", None)
        self.log.begin(place)
        self.ms(length)
        self.log.end(place)
        return self

    def load(self, length: float, *, starts: bool = False, has_batch: bool = True) -> DrawnRun:
        begun = self.log.now()
        self.ms(length)
        if has_batch:
            self.log.loaded((begun, starts))
        return self

    def eval_mode(self) -> DrawnRun:
        self.log.mode_changed(self.at("eval_mode", "eval", None))
        return self

    def train_mode(self) -> DrawnRun:
        self.log.mode_changed(None)
        return self

    def facts(self, step_every: int = 1) -> Facts:
        facts = describe(self.log, step_every, ended=True)
        assert facts is not None
        assert facts["elapsed_ns"] == self.ns - BEGIN - self.log.excluded_ns
        return facts

    def shares(self) -> dict[str, float]:
        """Milliseconds of each stage that has any."""
        stages = self.facts()["stages_ns"]
        return {name: spent / 1e6 for name, spent in stages.items() if spent}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> DrawnRun:
    return DrawnRun(monkeypatch)


def about(**stages: float) -> Any:
    """Gaps are counted in bins, so a stage may be wrong by a bin of one gap."""
    return pytest.approx(stages, rel=0.01, abs=0.5)


def epochs(run: DrawnRun, between: Callable[[], object], count: int = 5, steps: int = 20) -> None:
    for _ in range(count):
        for _ in range(steps):
            run.step()
        between()


def test_training_alone(run: DrawnRun) -> None:
    run.ms(500)
    epochs(run, lambda: None)
    assert run.shares() == about(start_up=500, training_steps=1000)
    assert run.facts()["steps"] == 100
    assert run.facts(step_every=4)["steps"] == 25
    assert run.facts()["first_step_ns"] == 10e6


def test_a_run_that_never_trains_says_nothing(run: DrawnRun) -> None:
    run.ms(5).block(7).save(3)
    assert describe(run.log, 1, ended=True) is None


def test_evaluation_and_checkpoints_between_epochs(run: DrawnRun) -> None:
    def between() -> None:
        run.ms(4).eval_mode().block(60, "validate", "evaluation").ms(6).save(25).train_mode()

    run.ms(100)
    epochs(run, between)
    expected = about(start_up=100, training_steps=1000, evaluation=300, checkpointing=125, other=50)
    # model.eval() begins the evaluation; 4 ms before and 6 ms after it are neither
    assert run.shares() == expected
    places = [(place["function"], place["count"]) for place in run.facts()["places"]]
    assert places == [("validate", 5), ("save", 5)]


def test_a_block_for_each_batch_of_an_evaluation(run: DrawnRun) -> None:
    """The metrics between two batches are evaluation, too."""

    def between() -> None:
        run.eval_mode()
        for _ in range(10):
            run.load(1).block(4).ms(2)
        run.train_mode()

    epochs(run, between)
    assert run.shares() == about(training_steps=1000, evaluation=5 * (10 * 7 - 2), other=10)


@pytest.mark.parametrize("evaluation", [1, 30, 400])
def test_an_evaluation_that_computes_gradients(run: DrawnRun, evaluation: float) -> None:
    """Without torch.no_grad() nothing but the mode of the model shows it."""
    epochs(run, lambda: run.eval_mode().ms(evaluation).train_mode())
    assert run.shares() == about(training_steps=1000, evaluation=5 * evaluation)


def test_a_model_that_trains_in_evaluation_mode(run: DrawnRun) -> None:
    epochs(run, run.eval_mode)
    # After the last epoch nothing shows whether the model will train or evaluate: 0 ms.
    assert run.shares() == about(training_steps=1000)


def test_the_last_evaluation_may_run_to_the_end(run: DrawnRun) -> None:
    epochs(run, lambda: None)
    run.ms(3).eval_mode().ms(70)
    assert run.shares() == about(training_steps=1000, other=3, evaluation=70)


@pytest.mark.parametrize("minibatches", [1, 2, 8, 32])
def test_rollouts_lie_outside_of_steps(run: DrawnRun, minibatches: int) -> None:
    run.ms(50)
    for _ in range(10):
        for _ in range(16):
            run.block(1).ms(2)  # the policy, then the environment
        for _ in range(minibatches):
            run.step()
    shares = run.shares()
    steps = 10 * minibatches * 10
    rollout = 10 * (16 * 3 - 2)
    assert shares["rollout"] == pytest.approx(rollout)
    assert shares["training_steps"] == pytest.approx(steps, abs=21)
    assert shares["start_up"] == 52  # with the environment before the first minibatch
    text = " ".join(run_lines(run_shares({"run_shares": run.facts()})))
    assert f"{1 - shares['training_steps'] / sum(shares.values()):.0%} of the run lies" in text


def test_what_every_step_does_is_part_of_it(run: DrawnRun) -> None:
    """A frozen teacher before the forward pass, a moving average after the optimizer."""
    run.ms(100)
    for _ in range(50):
        run.block(4, "teacher").step().block(1, "average")
    shares = run.shares()
    assert shares == about(start_up=100, training_steps=50 * 15)


def test_a_generation_in_every_step_is_not_part_of_it(run: DrawnRun) -> None:
    for _ in range(20):
        run.block(30, "generate", "rollout").step()
    assert run.shares() == about(rollout=600, training_steps=200)


def test_gradient_accumulation(run: DrawnRun) -> None:
    for _ in range(25):
        for _ in range(8):
            run.block(1, "teacher").forward(3).backward(5)
        run.optimizer(2)
    assert run.shares() == about(training_steps=25 * (8 * 9 + 2))
    assert run.facts()["steps"] == 25


def test_several_optimizers(run: DrawnRun) -> None:
    """The critic steps five times as often; a step ends with the generator's."""
    for _ in range(20):
        for _ in range(5):
            run.forward(3).backward(5).optimizer(2, which=1)
        run.forward(3).backward(5).optimizer(2, which=2)
    assert run.shares() == about(training_steps=20 * 60)
    assert run.facts()["steps"] == 20


def test_a_generator_with_a_longer_forward_pass_than_its_critic_pauses_for_nothing(run: DrawnRun) -> None:
    for _ in range(20):
        run.step(which=1).step(forward=93, which=2)
    assert run.shares() == about(training_steps=20 * (10 + 100))
    assert [one["step_ns"] for one in run.facts()["trainings"]] == [110e6]


def trainings(run: DrawnRun) -> list[tuple[int, int, float, bool]]:
    """First optimizer, steps, length of a step in ms and whether it is recorded, by training."""
    return [
        (one["first_optimizer"], one["steps"], one["step_ns"] / 1e6, one["recorded"])
        for one in run.facts()["trainings"]
    ]


def test_a_sweep_is_several_trainings_each_with_its_own_steps(run: DrawnRun) -> None:
    run.train(1, steps=30)
    run.log.recorded_ns = run.log.now()
    run.ms(50).train(2, steps=10, forward=93).train(3, steps=20, forward=193)
    assert trainings(run) == [(1, 30, 10, True), (2, 10, 100, False), (3, 20, 200, False)]
    assert run.facts()["steps"] == 60
    assert unrecorded_training(run.log) == (
        "the run has 3 trainings, and the recorded steps are of number 1, 6% of their time; "
        "to record number 3 (76%): stepscope run --from-optimizer 3"
    )


def test_long_steps_after_many_short_ones_are_no_pauses_between_these(run: DrawnRun) -> None:
    """All but the first, before which the second model is made."""
    run.train(1, steps=90).train(2, steps=10, forward=93)
    assert run.shares() == about(training_steps=900 + 1000 - 90, other=90)


def test_folds_are_alike_so_that_any_of_them_may_be_recorded(run: DrawnRun) -> None:
    run.log.recorded_ns = run.train(1, steps=1).log.now()
    run.train(1, steps=19)
    for fold in range(2, 6):
        run.train(fold, steps=20)
    assert [steps for _, steps, *_ in trainings(run)] == [20] * 5
    assert unrecorded_training(run.log) is None


def test_clients_whose_steps_vary_are_no_reason_to_record_another(run: DrawnRun) -> None:
    run.log.recorded_ns = run.train(1, steps=4).log.now()
    for client in range(2, 40):
        run.train(client, steps=4, forward=3 + 20 * (client % 2))
    assert unrecorded_training(run.log) is None


def test_optimizers_that_step_in_turns_are_one_training(run: DrawnRun) -> None:
    for _ in range(5):
        run.train(1, steps=20).train(2, steps=10)
    assert trainings(run) == [(1, 50, 30, False)]


def test_an_optimizer_made_for_a_few_steps_inside_each_step_of_another_ends_none(run: DrawnRun) -> None:
    """Meta-learning: a new optimizer adapts the model to each task."""
    run.optimizer(2)
    for task in range(1, 21):
        run.train(task, steps=5).step()
    assert [steps for _, steps, *_ in trainings(run)] == [21]


def test_a_closure_is_part_of_its_optimizer(run: DrawnRun) -> None:
    for _ in range(30):
        run.forward(1).optimizer(9, closure=5)
    assert run.shares() == about(training_steps=450)


def test_an_optimizer_that_fails_is_left_behind(run: DrawnRun) -> None:
    run.step()
    run.log.begin_step(run.stepping(0))
    run.ms(3)
    run.step()
    assert run.shares() == about(training_steps=23)


def test_loading_is_part_of_steps_and_starting_loaders_is_not(run: DrawnRun) -> None:
    run.ms(40)
    for _ in range(5):
        run.load(20, starts=True).load(30, starts=True).step()
        for _ in range(19):
            run.load(2).step()
        run.load(1, has_batch=False)
    shares = run.shares()
    assert shares["data_preparation"] == 250
    assert shares["start_up"] == 40
    assert shares["training_steps"] == pytest.approx(5 * (200 + 38) + 4, abs=1.5)
    assert run.facts()["data_loading_ns"] == 5 * 38e6


def test_a_long_pause_between_steps_is_not_part_of_them(run: DrawnRun) -> None:
    epochs(run, lambda: run.ms(70))
    shares = run.shares()
    assert shares["other"] == pytest.approx(350, abs=1)
    assert shares["training_steps"] == pytest.approx(1000, abs=1)


def test_steps_of_different_length_are_steps(run: DrawnRun) -> None:
    for step in range(100):
        run.step(forward=1 + step % 5)
    assert run.shares() == about(training_steps=1000)


def test_the_recorder_does_not_count(run: DrawnRun) -> None:
    for step in range(20):
        run.step()
        if step == 8:
            with run.log.excluding():
                run.ms(2000)
    assert run.shares() == about(training_steps=200)
    assert run.facts()["recorder_ns"] == 2e9


def test_batches_are_read_to_evaluate(run: DrawnRun) -> None:
    def between() -> None:
        place = run.at("no_grad", "main", None)
        run.log.begin(place)
        run.load(60)
        run.log.end(place)

    epochs(run, between)
    assert run.shares() == about(training_steps=1000, evaluation=300)


def test_saving_inside_an_evaluation_is_checkpointing(run: DrawnRun) -> None:
    epochs(run, lambda: run.block(60, "validate", "evaluation", saves=15))
    assert run.shares() == about(training_steps=1000, evaluation=300, checkpointing=75)


def test_what_happens_before_training_is_start_up(run: DrawnRun) -> None:
    """A dry run without gradients, then more setting up."""
    run.ms(10).block(5).ms(85)
    epochs(run, lambda: None)
    assert run.shares() == about(start_up=100, training_steps=1000)


def test_a_function_without_gradients_that_trains(run: DrawnRun) -> None:
    place = run.at("no_grad", "main", None)
    run.log.begin(place)
    run.ms(2)
    epochs(run, lambda: None)
    run.log.end(place)
    assert run.shares() == about(start_up=5, training_steps=997)


def test_durations_keep_their_sum() -> None:
    lengths = [0, 1, 3, 10, 10, 11, 4000, 10**12]
    one = Durations()
    for length in lengths:
        one.add(length)
    assert one.total_ns == sum(lengths)
    assert one.median_ns() == 10
    assert one.cut_at(100, 20) == 0 + 1 + 3 + 10 + 10 + 11 + 20 + 20
    assert Durations().median_ns() == 0


SECOND = 10**9


def test_shares_are_published_ever_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now[0])
    clock = RunClock()
    published: list[tuple[int, bool]] = []

    def publish(facts: dict[str, object]) -> None:
        published.append((now[0] // SECOND, bool(facts["ended"])))
        now[0] += SECOND // 100  # so the next is a second later at least
        raise ValueError("must not reach the program")

    optimizer = SteppingOptimizer("Adam", Activity("optimizer"))
    clock.publish_now_and_then(publish)
    for _ in range(1000):
        clock.log.begin_step(optimizer)
        now[0] += SECOND
        clock.log.end_step(optimizer)
    moments = [moment for moment, _ in published]
    assert moments[:4] == [1, 2, 3, 5]
    assert len(moments) < 20
    assert moments[-1] > 600
    assert not any(ended for _, ended in published)
    assert clock.log.excluded_ns == len(published) * SECOND // 100
    assert clock.describe(ended=True)["elapsed_ns"] == 1000 * SECOND


def test_memory_does_not_grow_with_optimizers_that_a_program_makes_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As for each client of a federation: ten steps each, more than a program takes of one step."""
    run = DrawnRun(monkeypatch)
    for client in range(1000):
        run.train(client, steps=10)
    assert len(run.log.optimizers) == 200
    facts = describe(run.log, 1, ended=True)
    assert facts is not None
    assert facts["steps"] == 10_000
