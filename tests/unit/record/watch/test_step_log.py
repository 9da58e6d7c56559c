"""Vectors of steps, of what torch reports, with a clock that only the test advances."""

from __future__ import annotations

import ctypes
import gc
import math
import signal
import sys
import threading
from collections.abc import Iterator
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stepscope.base.watch_format import FIELDS
from stepscope.record.run_shares.activity_hooks import ActivityHooks
from stepscope.record.unreplaced import time
from stepscope.record.watch.step_log import _MOST_LATE, StepClocks, StepLog
from stepscope.record.watch.watch_file import Vector


class Watched:
    """A log of what torch does, and the steps of it."""

    def __init__(self) -> None:
        self.ns = 0
        self.vectors: list[Vector] = []
        self.failures: list[Exception] = []
        self.log = StepLog(self.vectors.append, lambda: None, self.failures.append)
        self.hooks = ActivityHooks(self.log)

    def ms(self, length: float) -> None:
        self.ns += round(length * 1e6)

    def close(self) -> None:
        self.hooks.remove()
        self.log.clocks.remove()

    def steps(self, *names: str) -> list[tuple[float, ...]]:
        """These fields of each step, times in ms."""
        self.log.count_noted()
        assert self.failures == []
        rows = [dict(zip(FIELDS, vector, strict=True)) for vector in self.vectors]
        return [tuple(row[n] / 1e6 if n.endswith("_ns") else round(row[n], 6) for n in names) for row in rows]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    watched: Watched | None = None
    monkeypatch.setattr(time, "perf_counter_ns", lambda: watched.ns if watched else 0)
    watched = Watched()
    yield watched
    watched.close()


class Training:
    """A pass takes 3 ms forwards and 5 backwards."""

    def __init__(self, run: Watched) -> None:
        self.run = run
        self.weight = nn.Parameter(torch.ones(2))
        self.optimizer = torch.optim.SGD([self.weight], lr=0.1)
        self.weight.register_hook(lambda gradient: run.ms(5))  # type: ignore[no-untyped-call]

    def __call__(self) -> None:
        self.run.ms(3)
        self.weight.sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


class Batches(Dataset[int]):
    """Each takes 2 ms."""

    def __init__(self, run: Watched) -> None:
        self.run = run

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        self.run.ms(2)
        return index


def test_the_first_step_is_part_of_the_start(run: Watched) -> None:
    train = Training(run)
    run.ms(100)
    for _ in range(3):
        train()
    assert run.steps("step", "begin_ns", "wall_ns", "backward") == [(0, 108, 8, 5), (1, 116, 8, 5)]


def test_waiting_for_a_data_loader_is_part_of_its_step(run: Watched) -> None:
    train = Training(run)
    for _ in DataLoader(Batches(run), batch_size=1):
        train()
    assert run.steps("wall_ns", "input", "backward") == [(10, 2, 5)] * 3


def test_a_step_has_no_time_of_the_recorder_and_begins_when_it_does(
    run: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the clock of the samples of lines, which would shift against the steps of a long run."""
    monkeypatch.setattr(time, "thread_time_ns", lambda: run.ns)
    monkeypatch.setattr(run.log, "_on_counted", lambda: run.ms(30))  # as reading the samples takes
    train = Training(run)
    train()
    for _ in range(2):
        train()
        run.log.count_noted()
    train()
    assert run.steps("begin_ns", "wall_ns", "cpu") == [(8, 8, 8), (46, 8, 8), (84, 8, 8)]


def test_a_rollout_is_told_from_an_evaluation(run: Watched) -> None:
    train = Training(run)

    def collect_rollout() -> None:
        with torch.no_grad():
            run.ms(40)

    for _ in range(4):
        train()
        collect_rollout()
    assert run.steps("wall_ns", "evaluation") == [(48, 40)] * 3
    assert [(p["kind"], p["function"]) for p in run.log.places.values()] == [("rollout", "collect_rollout")]


def test_evaluation_and_checkpoints_have_their_line(run: Watched, tmp_path: Path) -> None:
    train = Training(run)
    model = nn.Linear(1, 1)

    def validate() -> None:
        model.eval()
        with torch.no_grad():
            run.ms(40)
        model.train()

    class Slow:
        def __reduce__(self) -> tuple[type, tuple[()]]:
            run.ms(7)
            return list, ()

    for _ in range(4):
        train()
        validate()
        torch.save(Slow(), tmp_path / "checkpoint.pt")
    assert run.steps("wall_ns", "evaluation", "checkpoint") == [(55, 40, 7)] * 3
    places = [(p["kind"], p["function"], p["count"], p["total_ns"] / 1e6) for p in run.log.places.values()]
    assert places == [
        ("evaluation", "validate", 4, 160),
        ("checkpoint", test_evaluation_and_checkpoints_have_their_line.__name__, 4, 28),
    ]


def test_two_optimizers_make_one_step(run: Watched) -> None:
    first, second = Training(run), Training(run)
    for _ in range(6):
        first()
        second()
    walls = run.steps("wall_ns")
    assert walls[1:] == [(16,)] * len(walls[1:])
    assert len(walls) >= 4


def test_optimizers_that_step_in_a_backward_pass_make_one_step(run: Watched) -> None:
    weights = [nn.Parameter(torch.ones(2)) for _ in range(3)]
    each = {weight: torch.optim.SGD([weight], lr=0.1) for weight in weights}

    def update(weight: Any) -> None:
        run.ms(2)
        each[weight].step()

    for weight in weights:
        weight.register_post_accumulate_grad_hook(update)
    for _ in range(4):
        run.ms(3)
        sum(weights).sum().backward()  # type: ignore[union-attr, no-untyped-call]
    assert run.steps("step", "wall_ns", "backward") == [(number, 9, 6) for number in range(3)]


def test_what_a_closure_runs_is_no_part_of_the_update(run: Watched) -> None:
    training = Training(run)

    def closure() -> torch.Tensor:
        run.ms(3)
        loss = training.weight.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(2):
        training.optimizer.step(closure)
    assert run.steps("wall_ns", "backward", "optimizer") == [(8, 5, 0)]


class Queue:
    """`torch.cuda`, of a device that begins each pass as it is asked, and takes three times as long."""

    def __init__(self, run: Watched, late_ms: float, on: str = "") -> None:
        self.run, self.late_ms, self.made, self.on = run, late_ms, 0, on

    def is_initialized(self) -> bool:
        return True

    def is_current_stream_capturing(self) -> bool:
        return self.on == "capture"

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        self.made += 1
        return Event(self)


class Event:
    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    def record(self) -> None:
        self.ns = self.queue.run.ns

    def query(self) -> bool:
        assert not self.queue.is_current_stream_capturing(), "an error on a device"
        return self.queue.run.ns >= self.ns + self.queue.late_ms * 1e6

    def elapsed_time(self, end: Event) -> float:
        if self.queue.on == "two devices":
            raise RuntimeError("Both events must be recorded on the same device")
        assert end.query()
        return 3e-6 * (end.ns - self.ns)


@pytest.mark.parametrize(
    ("late_ms", "on", "ms"),
    [(0, "", 15), (20, "", 15), (1e6, "", 0), (0, "capture", 0), (0, "two devices", 0)],
)
def test_stages_by_the_device_s_clock_without_waiting_for_it(
    run: Watched, monkeypatch: pytest.MonkeyPatch, late_ms: float, on: str, ms: float
) -> None:
    """It may be a few steps behind, or so many that they are handed out without its times."""
    queue = Queue(run, late_ms, on)
    monkeypatch.setattr(torch, "cuda", queue)
    train, steps = Training(run), 100
    for number in range(1, steps + 1):
        train()
        run.log.count_noted()
        in_queue = math.ceil(late_ms / 8) if on == "" else 0
        assert len(run.vectors) == max(number - 1 - min(in_queue, _MOST_LATE), 0)
    run.log.tell_known(most_late=0)
    told = run.steps("step", "device_backward", "device_optimizer")
    known = steps - 1 - (math.ceil(late_ms / 8) if late_ms < 1e6 else 0)
    assert told == [(number, ms if number < known else 0, 0) for number in range(steps - 1)]
    assert queue.made <= 4 * (min(in_queue, steps) + 2)  # they are used again


def test_no_event_is_asked_while_a_graph_is_captured(run: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue(run, 0)
    monkeypatch.setattr(torch, "cuda", queue)
    train = Training(run)
    for queue.on in ("", "", "capture", "capture", ""):
        train()
        run.log.count_noted()
    run.log.tell_known(most_late=0)
    assert run.steps("step", "device_backward") == [(0, 15), (1, 0), (2, 0), (3, 15)]


def test_events_are_bounded_where_no_step_ends(run: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    train, queue = Training(run), Queue(run, 0)
    monkeypatch.setattr(torch, "cuda", queue)
    monkeypatch.setattr("stepscope.record.watch.step_log._MOST_MARKS", 10)
    for _ in range(50):
        train.weight.sum().backward()  # type: ignore[no-untyped-call]
    assert queue.made == 10
    train()
    train()
    run.log.tell_known(most_late=0)
    assert run.steps("device_backward") == [(15,)]


def test_garbage_collection_counts_in_its_step(run: Watched) -> None:
    train = Training(run)

    def slowly(phase: str, about: dict[str, int]) -> None:
        run.ms(4 if phase == "start" else 0)

    gc.disable()
    gc.callbacks.append(slowly)  # after ours: what it takes is inside
    try:
        for number in range(4):
            train()
            if number == 1:
                gc.collect()
            elif number == 2:
                elsewhere = threading.Thread(target=gc.collect)
                elsewhere.start()
                elsewhere.join()
    finally:
        gc.callbacks.remove(slowly)
        gc.enable()
    assert run.steps("gc", "wall_ns") == [(0, 8), (4, 12), (0, 12)]
    ((kind, _, file, _), place), *others = run.log.places.items()
    assert (kind, file, place["count"], place["total_ns"], others) == ("gc", __file__, 1, 4_000_000, [])


def test_lines_of_collections_leave_places_to_others(run: Watched) -> None:
    train = Training(run)
    train()
    train()
    for line in range(200):
        run.log.clocks._spent(("gc", "main", "train.py", line), 1_000_000, 1)
    train()
    run.log.clocks.add_compilation(sys._getframe(), 1_000_000)
    assert run.steps("gc") == [(0,), (0,)]
    assert [kind for kind, *_ in run.log.places] == ["gc"] * 50 + ["compile"]


def test_a_compilation_counts_in_its_step_with_its_line(run: Watched) -> None:
    train = Training(run)
    for number in range(3):
        train()
        if number == 1:
            run.ms(50)
            run.log.clocks.add_compilation(sys._getframe(), 50_000_000)
    assert run.steps("compile") == [(0,), (50,)]
    (place,) = run.log.places.values()
    assert (place["kind"], place["file"], place["total_ns"]) == ("compile", __file__, 50_000_000)


def test_compilations_count_after_the_compiler_was_reset(run: Watched) -> None:
    run.log.clocks.follow_torch()
    train, handler = Training(run), torch._dynamo.callback.callback_handler
    for number in range(3):
        train()
        if number == 1:
            torch._dynamo.reset()
            with handler.install_callbacks(torch._dynamo.callback.CallbackTrigger.DYNAMO, "0/0"):
                run.ms(50)
    assert run.steps("compile") == [(0,), (50,)]
    run.close()
    assert "install_callbacks" not in vars(handler)


def test_a_failure_inside_does_not_reach_the_program(run: Watched) -> None:
    train = Training(run)
    run.log._on_step = lambda vector: 1 / 0  # type: ignore[assignment]
    for _ in range(30):
        train()
        run.ms(100)
    assert {type(error) for error in run.failures} == {ZeroDivisionError}


class Late(Exception):
    pass


def late(number: int, frame: object) -> None:
    raise Late


def from_a_thread(kind: type[Exception]) -> object:
    """Python raises it in the frame that runs, after this call."""
    raises = ctypes.pythonapi.PyThreadState_SetAsyncExc
    return partial(raises, ctypes.c_ulong(threading.get_ident()), ctypes.py_object(kind))


@pytest.fixture
def alarm() -> Iterator[None]:
    before = signal.signal(signal.SIGUSR1, late)
    yield
    signal.signal(signal.SIGUSR1, before)


INTERRUPTS = {"signal": partial(signal.raise_signal, signal.SIGUSR1), "thread": from_a_thread(Late)}


@pytest.mark.parametrize("interrupts", INTERRUPTS.values(), ids=INTERRUPTS.keys())
def test_what_the_program_raises_while_steps_are_counted_reaches_it(
    run: Watched, alarm: None, monkeypatch: pytest.MonkeyPatch, interrupts: Any
) -> None:
    train = Training(run)
    train()
    run.log.count_noted()
    with monkeypatch.context() as patch:
        patch.setattr(run.log, "_on_counted", interrupts)
        run.ms(1000)
        with pytest.raises(Late):
            train()
    for _ in range(2):
        train()
    assert run.steps("step", "wall_ns") == [(0, 1011), (1, 8)]


def test_what_was_not_counted_before_an_interrupt_is_counted_later(run: Watched) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    train = Training(run)
    train()
    run.log.note(interrupted, None)
    for _ in range(2):
        train()
    with pytest.raises(KeyboardInterrupt):
        run.log.count_noted()
    run.ms(2)
    train()
    assert run.steps("wall_ns") == [(8,), (8,), (10,)]


def test_an_interrupt_during_a_garbage_collection_reaches_the_program(alarm: None) -> None:
    """The signal is sent in C, as one that arrives while Python collects."""
    clocks = StepClocks(lambda *words: None)
    send = ctypes.CDLL(None)["raise"]
    sending: Any = type("Sending", (map,), {"stop": property(next)})
    sends = partial(getattr, sending(send, repeat(int(signal.SIGUSR1))))
    callbacks = list(gc.callbacks)
    gc.callbacks[:] = [sends, *clocks._on_collection]
    try:
        with pytest.raises(Late):
            gc.collect()
    finally:
        gc.callbacks[:] = callbacks
        clocks.remove()
    assert clocks.read()[1] > 0


def test_a_generator_made_as_python_collects_has_its_own_frame() -> None:
    """Python 3.11 collects inside of `RETURN_GENERATOR`, where the frame is still another one's memory."""

    def count():
        yield 1
        yield 2

    def other(*, one: int = 1, two: int = 2) -> int:
        return one + two

    clocks = StepClocks(lambda *words: None)
    usual = gc.get_threshold()
    codes = set()
    try:
        for _ in range(20):
            gc.set_threshold(0)
            others = [[], [], []]
            gc.set_threshold(len(others))  # reached by the next object
            generator = count()
            gc.set_threshold(0)
            other()
            codes.add(generator.gi_frame.f_code)
            next(generator)
            codes.add(generator.gi_frame.f_code)
    finally:
        gc.set_threshold(*usual)
        clocks.remove()
    assert codes == {count.__code__}


def test_afterwards_nothing_is_left_behind() -> None:
    callbacks, engine = list(gc.callbacks), torch.autograd.Variable._execution_engine
    backward, files = torch.autograd.backward, [*Path("/proc/self/fd").iterdir()]
    watched = Watched()
    assert gc.callbacks != callbacks
    watched.close()
    assert gc.callbacks == callbacks
    assert len([*Path("/proc/self/fd").iterdir()]) == len(files)
    assert torch.autograd.backward is backward
    assert torch.autograd.Variable._execution_engine is engine
