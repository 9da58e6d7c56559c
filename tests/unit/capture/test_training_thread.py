"""Steps of one thread are recorded, and its profiler is stopped in it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from stepscope.capture.step_detector import Kind, TrainingThread


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


def takes(thread: TrainingThread, kind: Kind, *, is_recording: bool = False) -> bool:
    with thread.turn(kind, is_recording=is_recording) as counts:
        return counts


def test_the_first_thread_counts_and_others_do_not() -> None:
    thread = TrainingThread()
    assert takes(thread, Kind.CALL)
    assert not in_thread(lambda: takes(thread, Kind.CALL))
    assert takes(thread, Kind.CALL)


def test_a_thread_with_an_optimizer_comes_before_one_without() -> None:
    thread = TrainingThread()
    takes(thread, Kind.CALL)
    assert in_thread(lambda: takes(thread, Kind.OPTIMIZER))
    assert not takes(thread, Kind.CALL)
    assert not takes(thread, Kind.OPTIMIZER)


def test_a_recording_stays_with_its_thread() -> None:
    thread = TrainingThread()
    takes(thread, Kind.CALL)
    assert not in_thread(lambda: takes(thread, Kind.OPTIMIZER, is_recording=True))


def test_no_thread_waits_for_another() -> None:
    thread = TrainingThread()
    with thread.turn(Kind.OPTIMIZER, is_recording=False) as counts:
        assert counts
        assert not in_thread(lambda: takes(thread, Kind.OPTIMIZER))


def test_an_action_runs_in_the_thread_as_it_ends() -> None:
    thread, ran_in = TrainingThread(), []

    def train() -> int:
        takes(thread, Kind.OPTIMIZER)
        for _ in range(3):
            thread.at_its_end(lambda: ran_in.append(threading.get_ident()))
        assert ran_in == []
        return threading.get_ident()

    assert [in_thread(train)] == ran_in


def test_the_end_of_an_earlier_thread_does_nothing() -> None:
    thread, ran_in = TrainingThread(), []

    def observe() -> None:
        takes(thread, Kind.CALL)
        thread.at_its_end(lambda: ran_in.append(threading.get_ident()))
        in_thread(lambda: takes(thread, Kind.OPTIMIZER))

    in_thread(observe)
    assert ran_in == []
