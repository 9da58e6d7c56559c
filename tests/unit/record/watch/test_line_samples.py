"""Lines of the training thread, sampled by the real sampler."""

from __future__ import annotations

import multiprocessing
import threading
from collections import Counter
from multiprocessing.connection import Connection

import pytest

from stepscope.record.unreplaced import time
from stepscope.record.watch.line_samples import LineSamples


def decode(until_ns: int) -> None:
    while time.perf_counter_ns() < until_ns:
        pass


def test_the_line_that_takes_most_of_the_time_is_seen_most() -> None:
    begun_ns, begun_unix_ns = time.perf_counter_ns(), time.time_ns()
    samples = LineSamples(begun_ns, begun_unix_ns)
    samples.read_if_due()  # it begins
    threads = threading.active_count()
    seen: list[tuple[int, int, int]] = []
    while len(seen) < 10:
        decode(time.perf_counter_ns() + 100_000_000)
        read = samples.read_if_due(is_end=True)
        assert read
        lines, seen = read
    samples.stop()
    assert threading.active_count() == threads
    (most, _), *_ = Counter(lines[line][0] for _, line, _ in seen).most_common()
    assert most == "decode"
    assert lines[0][0] == "decode"
    assert all(0 <= ns <= time.time_ns() - begun_unix_ns for ns, *_ in seen)
    assert seen == sorted(seen)


def act(connection: Connection) -> None:
    connection.recv()


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, where a test before this one imported it
@pytest.mark.parametrize(("name", "role"), [("actor-1", "actor"), ("judge 2.1", "judge"), (None, "act")])
def test_children_have_a_role_by_their_name_or_by_what_they_run(name: str | None, role: str) -> None:
    processes = multiprocessing.get_context("fork")
    samples, (there, here) = LineSamples(time.perf_counter_ns(), time.time_ns()), processes.Pipe(duplex=False)
    child = processes.Process(target=act, args=(there,), name=name)
    child.start()
    samples.follow_children()
    found: set[tuple[str, str, int]] = set()
    while ("act", role, 1) not in found:  # at first it starts
        decode(time.perf_counter_ns() + 50_000_000)
        lines, seen = samples.read_if_due(is_end=True) or ([], [])
        found = {(lines[line][0], lines[line][3], slept) for _, line, slept in seen if lines[line][3]}
    here.send(None)
    child.join()
    samples.stop()
    assert samples.processes == {role: 1}


def test_they_are_read_about_as_often_in_each_doubling_of_the_run() -> None:
    samples = LineSamples(time.perf_counter_ns() - 100_000_000_000, 0)  # the run is 100 s old
    samples.read_if_due()
    assert samples.read_if_due() is None
    samples.stop()
