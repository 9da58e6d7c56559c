"""Lines of the training thread, sampled by the real sampler."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from stepscope.record.samples.loop_samples import SampledPlace, StackSamples
from stepscope.record.unreplaced import time
from stepscope.record.watch.watch_session import Line, LineSamples, _line_of_child, _role_by_command


def decode(until_ns: int) -> None:
    while time.perf_counter_ns() < until_ns:
        pass


def test_the_line_that_takes_most_of_the_time_is_seen_most() -> None:
    begun_ns, begun_unix_ns = time.perf_counter_ns(), time.time_ns()
    samples = LineSamples(begun_ns, begun_unix_ns)
    samples.read_if_due()  # it begins
    threads = threading.active_count()
    spans, during = [(0, 0)], Counter[str]()
    while during.total() < 10:  # on a busy machine the sampler, too, waits for a core
        begin_ns = time.time_ns() - begun_unix_ns
        decode(time.perf_counter_ns() + 100_000_000)
        spans.append((begin_ns, time.time_ns() - begun_unix_ns))
        lines, seen = samples.read_if_due(is_end=True) or ([], [])
        during = Counter(
            lines[line][0] for ns, line, _ in seen if any(begin <= ns < end for begin, end in spans)
        )
    samples.stop()
    assert threading.active_count() == threads
    (most, _), *_ = during.most_common()
    assert most == "decode"
    counts = Counter(line for _, line, _ in seen)
    assert counts[0] == max(counts.values())  # the most frequent line is the first
    assert all(0 <= ns <= time.time_ns() - begun_unix_ns for ns, *_ in seen)
    assert seen == sorted(seen)


def act(connection: Connection) -> None:
    connection.recv()


BOOTSTRAP = SampledPlace("BaseProcess._bootstrap", "/lib/multiprocessing/process.py", 9)
BELOW = [
    BOOTSTRAP,
    SampledPlace("Popen._launch", "/lib/multiprocessing/popen_fork.py", 2),
    SampledPlace("BaseProcess.start", "/lib/multiprocessing/process.py", 3),
    SampledPlace("main", "/run/train.py", 8),
]
RUN = SampledPlace("BaseProcess.run", "/lib/multiprocessing/process.py", 5)


@pytest.mark.parametrize(
    ("stack", "line"),
    [
        ([SampledPlace("act", "/run/act.py", 1), RUN, *BELOW], ("act", "/run/act.py", 1, "act")),
        ([SampledPlace("Actor.run", "/run/act.py", 2), *BELOW], ("Actor.run", "/run/act.py", 2, "Actor.run")),
        ([RUN, *BELOW], None),
        ([SampledPlace("Thread._set_native_id", "/lib/threading.py", 4), *BELOW], None),
        ([SampledPlace("_exit_function", "/lib/multiprocessing/util.py", 4), *BELOW], None),
        ([SampledPlace("_shutdown", "/lib/threading.py", 4), *BELOW], None),
        (BELOW[1:], None),  # before and after
        (BELOW[3:], None),  # the loop, as its process forks
    ],
)
def test_a_child_has_no_line_as_its_process_begins_and_ends(
    stack: list[SampledPlace], line: Line | None
) -> None:
    samples = StackSamples((0,), (0,), [[*range(len(stack))]], stack)
    assert _line_of_child(samples, samples.stacks[0], "Process-1") == line


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


def test_a_script_that_was_started_has_a_role_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "rollout_2.py").write_text("def act():\n    input()\nact()\n")
    samples = LineSamples(time.perf_counter_ns(), time.time_ns())
    command = ["sh", "-c", f"{sys.executable} -u rollout_2.py; true"]  # not a child, but below one
    with subprocess.Popen(command, cwd=tmp_path, stdin=subprocess.PIPE) as shell:
        found: set[tuple[str, str, int]] = set()
        while ("act", "rollout", 1) not in found:
            decode(time.perf_counter_ns() + 50_000_000)
            lines, seen = samples.read_if_due(is_end=True) or ([], [])
            found = {(lines[line][0], lines[line][3], slept) for _, line, slept in seen if lines[line][3]}
        shell.communicate(b"\n")
    samples.stop()
    assert samples.processes == {"rollout": 1}


@pytest.mark.parametrize(
    ("command", "role"),
    [
        (["python", "-u", "-X", "dev", "/run/judge.py", "-m", "x"], "judge"),
        (["python3", "-m", "verl.workers.rollout", "--n", "1"], "rollout"),
        (["python", "worker.3.py"], "worker"),
        (["ray::Rollout.generate"], "Rollout"),
        (["ray::Reward"], "Reward"),
        (["ray::IDLE"], ""),
        (["ray::DashboardAgent"], ""),
        (["python", "-c", "from multiprocessing.spawn import spawn_main", "--multiprocessing-fork"], ""),
        (["python", "-u", "/opt/venv/lib/python3.11/site-packages/ray/_private/log_monitor.py"], ""),
        (["python", "train.py"], ""),  # a copy of this process
        (["python"], ""),
    ],
)
def test_a_role_follows_from_the_command(command: list[str], role: str) -> None:
    assert _role_by_command("\0".join([*command, ""]), "python\0train.py\0") == role


def test_they_are_read_about_as_often_in_each_doubling_of_the_run() -> None:
    samples = LineSamples(time.perf_counter_ns() - 100_000_000_000, 0)  # the run is 100 s old
    samples.read_if_due()
    assert samples.read_if_due() is None
    samples.stop()
