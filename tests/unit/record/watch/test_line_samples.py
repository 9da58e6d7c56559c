"""Lines of the training thread, sampled by the real sampler."""

from __future__ import annotations

import threading
from collections import Counter

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
    seen: list[tuple[int, int]] = []
    while len(seen) < 10:
        decode(time.perf_counter_ns() + 100_000_000)
        read = samples.read_if_due(is_end=True)
        assert read
        lines, seen = read
    samples.stop()
    assert threading.active_count() == threads
    (most, _), *_ = Counter(lines[line][0] for _, line in seen).most_common()
    assert most == "decode"
    assert lines[0][0] == "decode"
    assert all(0 <= ns <= time.time_ns() - begun_unix_ns for ns, _ in seen)
    assert seen == sorted(seen)


def test_they_are_read_about_as_often_in_each_doubling_of_the_run() -> None:
    samples = LineSamples(time.perf_counter_ns() - 100_000_000_000, 0)  # the run is 100 s old
    samples.read_if_due()
    assert samples.read_if_due() is None
    samples.stop()
