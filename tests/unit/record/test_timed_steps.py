"""Lengths of steps and of their parts, with clocks that only the test advances."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader

from stepscope.record import part_timer, step_times
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry
from stepscope.record.part_timer import PARTS, PartTimer
from stepscope.record.step_times import MOST, StepReadings, page_fault_ns
from stepscope.record.unreplaced import time


class Clock:
    """Elapsed time and CPU time of the thread and the process."""

    def __init__(self) -> None:
        self.elapsed = self.cpu = 0

    def run(self, elapsed: int, cpu: int) -> None:
        self.elapsed += elapsed
        self.cpu += cpu


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    now = Clock()
    monkeypatch.setattr(part_timer, "page_faults", lambda: now.cpu)
    monkeypatch.setattr(time, "perf_counter_ns", lambda: now.elapsed)
    monkeypatch.setattr(time, "thread_time_ns", lambda: now.cpu)
    monkeypatch.setattr(time, "process_time_ns", lambda: 2 * now.cpu)
    return now


@pytest.fixture
def timer(clock: Clock):
    timer = PartTimer()
    yield timer
    timer.remove()


def timed(timer: PartTimer, clock: Clock, lengths: list[int]) -> StepReadings:
    steps = StepReadings(timer.read)
    steps.follow()
    for length in lengths:
        clock.run(length, length // 10)
        steps.follow()
    return steps


def test_threads_that_wait_for_each_other_wait_for_no_other_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what all threads waited, no more counts than other processes used."""
    used = iter([0, 2_000, 2_000, 9_000])
    waited = iter([0, 5_000, 9_000, 10_000])
    monkeypatch.setattr(step_times, "_used_by_others_ns", lambda: next(used))
    monkeypatch.setattr(step_times, "_queued_of_all_ns", lambda: next(waited))
    queue = step_times.CoreQueue()
    assert [queue() for _ in range(4)] == [0, 2_000, 2_000, 3_000]


def test_lengths_are_described_by_percentiles(timer: PartTimer, clock: Clock) -> None:
    facts = timed(timer, clock, [30, 10, 20, 40, 50, 70, 60, 80, 100, 90, 110]).describe()
    parts, queued = facts.pop("parts"), facts.pop("queued_ns")
    assert queued is None or queued >= 0
    assert facts.pop("elapsed_ns") == 660
    assert facts.pop("used_ns") == 66
    assert facts == {
        "count": 11,
        "median_ns": 60,
        "p10_ns": 20,
        "p90_ns": 100,
        "cpu_ns": 6,
        "cpu_p10_ns": 2,
        "cpu_p90_ns": 10,
        "process_cpu_ns": 12,
        "page_faults": 6,
    }
    assert parts["rest"] == {"median_ns": 60, "p10_ns": 20, "p90_ns": 100, "recurring_ns": 59, "cpu_ns": 6}


def test_the_longest_of_a_part_counts_as_the_next_longest(timer: PartTimer, clock: Clock) -> None:
    """It may be the start of an epoch, or what a busy machine did to one step."""
    for lengths, expected in (([10, 30, 20, 9000], 22), ([40], 40), ([10, 5000], 10)):
        assert timed(timer, clock, lengths).describe()["parts"]["rest"]["recurring_ns"] == expected


def test_what_a_page_fault_costs_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 20 < page_fault_ns() < 100_000
    monkeypatch.setattr(step_times, "resource", None)  # as on Windows
    assert page_fault_ns() is None


@pytest.mark.main
def test_a_process_that_may_have_no_more_memory_is_not_disturbed() -> None:
    code = (
        "import resource\n"
        "from stepscope.record.step_times import page_fault_ns\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 20, 1 << 20))\n"
        "print(page_fault_ns())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout == "None\n"


def test_no_step_says_nothing(timer: PartTimer, clock: Clock) -> None:
    assert timed(timer, clock, []).describe() is None


def test_what_the_recorder_does_between_steps_does_not_count(timer: PartTimer, clock: Clock) -> None:
    steps = StepReadings(timer.read)
    for length in (10, 20, 30):
        steps.begin()
        clock.run(length, length)
        steps.end()
        clock.run(1000, 1000)
    assert steps.describe()["median_ns"] == 20
    assert steps.describe()["parts"]["rest"]["median_ns"] == 20


def test_timing_ends(timer: PartTimer, clock: Clock) -> None:
    assert not timed(timer, clock, [1] * (MOST - 1)).is_complete
    assert timed(timer, clock, [1] * MOST).is_complete


def test_parts_of_a_step(timer: PartTimer, clock: Clock) -> None:
    """Each piece of work advances the clocks by a power of ten, once."""

    class Slow(torch.autograd.Function):
        @staticmethod
        def forward(ctx, tensor):
            clock.run(10, 1)
            return tensor * 2

        @staticmethod
        def backward(ctx, grad):
            clock.run(100, 2)
            return grad

    class Data(torch.utils.data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            clock.run(1, 3)
            return torch.ones(2)

    class Optimizer(torch.optim.SGD):
        def step(self, closure=None):
            loss = closure()
            clock.run(1000, 4)
            return loss

    weight = nn.Parameter(torch.ones(2))
    optimizer = Optimizer([weight], lr=0.1)
    steps = StepReadings(timer.read)
    steps.follow()
    for batch in DataLoader(Data()):

        def closure(batch=batch):
            loss = (Slow.apply(weight) * batch).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
        steps.follow()
    parts = steps.describe()["parts"]
    assert {name: part["median_ns"] for name, part in parts.items()} == {
        "data_loading": 1,
        "forward": 0,
        "evaluation": 0,
        "loss": 0,
        "zero_grad": 0,
        "backward": 100,
        "optimizer": 1000,
        "rest": 10,
    }
    assert parts["optimizer"]["cpu_ns"] == 4


class Slow(nn.Module):
    """A layer that advances the clock."""

    def __init__(self, clock: Clock, time: int) -> None:
        super().__init__()
        self.weight, self.clock, self.time = nn.Parameter(torch.ones(2)), clock, time

    def forward(self, tensor):
        self.clock.run(self.time, self.time)
        return tensor * self.weight


@pytest.fixture
def ranges(timer: PartTimer):
    ranges = ModuleRanges(ModuleRegistry())
    ranges.timer = timer
    yield ranges
    ranges.remove()


@pytest.mark.parametrize("records", [True, False])
def test_models_with_and_without_gradients_are_timed(
    timer: PartTimer, clock: Clock, ranges: ModuleRanges, records: bool
) -> None:
    """Each piece of work advances the clock by a power of ten, once."""
    ranges.install(quiet=not records)
    model = nn.Sequential(Slow(clock, 1), Slow(clock, 10))
    teacher = Slow(clock, 100)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    steps = StepReadings(timer.read)
    steps.follow()
    for _ in range(3):
        with torch.no_grad():
            target = teacher(torch.ones(2))
        clock.run(1000, 0)
        output = model(torch.ones(2))
        clock.run(10_000, 0)
        loss = (output - target).square().sum()
        optimizer.zero_grad()
        loss.backward()
        clock.run(100_000, 0)
        optimizer.step()
        steps.follow()
    parts = steps.describe()["parts"]
    assert {name: part["median_ns"] for name, part in parts.items() if part["median_ns"]} == {
        "forward": 11,
        "evaluation": 100,
        "loss": 10_000,
        "rest": 101_000,
    }
    changes = timer.changes()
    names = [changes["parts"][part] for part in changes["part"]]
    assert names[: len(names) // 3] == [
        "evaluation",
        "rest",
        "forward",
        "loss",
        "zero_grad",
        "rest",
        "backward",
        "rest",
        "optimizer",
        "rest",
    ]
    moments = changes["after_ns"]
    assert moments[:5] == [0, 100, 1100, 1111, 11_111]


def test_the_recorders_own_work_is_no_time_of_an_unrecorded_step(
    timer: PartTimer, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every reading of the clock takes a microsecond, and a hook inside the step 500."""
    reads = [0]

    def slow_clock() -> int:
        reads[0] += 1
        return clock.elapsed + 1000 * reads[0]

    monkeypatch.setattr(time, "perf_counter_ns", slow_clock)
    timer.stop_noting_changes()
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    steps = StepReadings(timer.read)
    steps.follow()
    for _ in range(3):
        clock.run(10, 10)
        timer.pause()
        clock.run(500, 500)
        timer.resume()
        optimizer.zero_grad()
        optimizer.step()
        steps.follow()
    facts = steps.describe()
    assert facts["cpu_ns"] == 10
    assert facts["parts"]["rest"]["cpu_ns"] == 10
    # A part has the reading at its end, the rest those at the begin of others and of the step.
    assert facts["median_ns"] == sum(part["median_ns"] for part in facts["parts"].values())


@pytest.mark.parametrize("records", [True, False])
def test_other_work_of_the_recorder_is_part_of_no_step(timer: PartTimer, clock: Clock, records: bool) -> None:
    """Steps may end, and readings be taken, while it works."""
    if not records:
        timer.stop_noting_changes()
    steps = StepReadings(timer.read)
    for _ in range(4):
        clock.run(20, 20)
        timer.pause()
        clock.run(300, 300)
        steps.follow()
        clock.run(500, 500)
        timer.resume()
        clock.run(9, 9)
    facts, changes = steps.describe(), timer.changes()
    assert (facts["median_ns"], facts["parts"]["rest"]["median_ns"]) == (29, 29)
    names = [changes["parts"][part] for part in changes["part"]] if changes else []
    assert names == (["recorder", "rest"] * 4 if records else [])


def test_parts_are_told_apart_on_request(timer: PartTimer, clock: Clock, ranges: ModuleRanges) -> None:
    ranges.install(quiet=True)
    layer = Slow(clock, 10)
    optimizer, steps = torch.optim.SGD(layer.parameters(), lr=0.1), StepReadings(timer.read)
    for tells in (True, False):
        timer.tell_parts(tells)
        steps.begin()
        layer(torch.ones(2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        steps.end()
    before, after = (
        {name: times[0] - begun.parts[name][0] for name, times in ended.parts.items()}
        for begun, ended in steps.steps
    )
    assert before["forward"] == after["rest"] == 10
    assert after["forward"] == before["rest"] == 0


def test_a_layer_that_backward_runs_again_is_backward(
    timer: PartTimer, clock: Clock, ranges: ModuleRanges
) -> None:
    ranges.install()
    layer = Slow(clock, 10)
    steps = StepReadings(timer.read)
    steps.follow()
    checkpoint(layer, torch.ones(2), use_reentrant=False).sum().backward()
    steps.follow()
    parts = steps.describe()["parts"]
    assert (parts["forward"]["median_ns"], parts["backward"]["median_ns"]) == (10, 10)


def test_a_model_that_fails_does_not_count_on(timer: PartTimer, clock: Clock, ranges: ModuleRanges) -> None:
    ranges.install(quiet=True)
    layer, steps = Slow(clock, 10), StepReadings(timer.read)
    steps.follow()
    with pytest.raises(RuntimeError):
        layer(torch.ones(3))
    clock.run(7, 7)
    steps.follow()
    parts = steps.describe()["parts"]
    assert (parts["forward"]["median_ns"], parts["loss"]["median_ns"]) == (10, 7)


def test_an_optimizer_that_fails_does_not_count_on(timer: PartTimer, clock: Clock) -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    steps = StepReadings(timer.read)
    with pytest.raises(ZeroDivisionError):
        optimizer.step(lambda: 1 // 0)
    steps.follow()
    clock.run(7, 7)
    steps.follow()
    assert steps.describe()["parts"]["rest"]["median_ns"] == 7


def test_torch_is_as_it_was_afterwards(clock: Clock) -> None:
    from torch.optim import optimizer
    from torch.utils.data import dataloader

    def state():
        return (
            dataloader._BaseDataLoaderIter.__next__,
            torch.autograd._engine_run_backward,
            dict(optimizer._global_optimizer_pre_hooks),
            dict(optimizer._global_optimizer_post_hooks),
        )

    before = state()
    PartTimer().remove()
    assert state() == before
    assert PARTS[-1] == "rest"
