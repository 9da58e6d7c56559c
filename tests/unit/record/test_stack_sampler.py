"""The stack of a thread, sampled from a thread that Python cannot see."""

from __future__ import annotations

import asyncio
import os
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from itertools import compress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.record.samples import loop_samples
from stepscope.record.samples.loop_samples import (
    LoopSamples,
    StackSampler,
    StackSamples,
    Unavailable,
    Wait,
    describe,
    lines_of_others,
    parse,
)
from stepscope.record.samples.loop_samples import SampledPlace as Place

HERE = __file__


@pytest.fixture(autouse=True)
def fresh(library: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The library that tests are run with, loaded for each."""
    monkeypatch.setattr(loop_samples, "LIBRARY", library)
    if sys.platform != "linux" or sys.version_info >= (3, 14):
        pytest.skip("stacks are not sampled here")
    loop_samples._library.cache_clear()
    yield
    loop_samples._library.cache_clear()


def short(number: int) -> int:
    return 2 * number


def work() -> None:
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        sum(map(short, range(100)))


def wait() -> None:
    time.sleep(0.3)  # 300 samples, of which a machine without a free core takes a few


def deep(depth: int) -> None:
    if depth:
        deep(depth - 1)
    else:
        work()


def functions(found: StackSamples) -> Counter[str]:
    """How many samples have each function innermost; a process that starts has none."""
    innermost = [found.stacks[stack][0] for stack in found.stack if found.stacks[stack]]
    return Counter(found.places[place].function for place in innermost)


def test_what_a_thread_executes_and_waits_for() -> None:
    sampler = StackSampler()
    work()
    wait()
    found = functions(sampler.stop())
    assert found["work"] + found["short"] > 10
    assert found["wait"] > 10


def test_a_text_with_a_zero_is_torn() -> None:
    """Memory that is being written; what is read then has a zero after each text."""
    sampler = StackSampler()
    exec(work.__code__.replace(co_name="wo\0rk"))
    work()
    found = functions(sampler.stop())
    assert found["work"] + found["short"] > 10
    assert not any(name == "wo" or "\0" in name for name in found)


def wait_for(reading: int) -> None:
    os.read(reading, 1)


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, where a test before this one imported it
def test_what_a_forked_process_executes_until_it_ends() -> None:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        wait_for(reading)
        os._exit(0)
    sampler = StackSampler()
    sampler.follow(child)
    while functions(sampler.so_far())["wait_for"] < 30:  # of which it may run in the first and the last
        work()
    os.write(writing, b"x")
    os.waitpid(child, 0)
    seen = functions(sampler.so_far())["wait_for"]
    work()
    samples = sampler.stop()
    found, slept = (
        functions(samples),
        functions(replace(samples, stack=[*compress(samples.stack, samples.waits)])),
    )
    assert found["wait_for"] == seen
    assert found["work"] + found["short"] > 10
    assert slept["wait_for"] > 0.9 * seen
    assert slept["work"] + slept["short"] < 0.1 * (found["work"] + found["short"])


def test_what_a_spawned_process_executes() -> None:
    if sys.version_info < (3, 11):
        pytest.skip("the state of its main thread is anywhere")
    text = "def wait_for(): input()\nwait_for()"
    with subprocess.Popen([sys.executable, "-S", "-c", text], stdin=subprocess.PIPE) as child:
        sampler = StackSampler()
        sampler.follow(child.pid)
        while not functions(sampler.so_far())["wait_for"]:
            work()
        child.communicate(b"\n")
    found = sampler.stop()
    of_child = {found.stack[at] for at, process in enumerate(found.child) if process == child.pid}
    names = {tuple(found.places[place].function for place in found.stacks[stack]) for stack in of_child}
    assert ("wait_for", "<module>") in names


def test_whole_stacks_with_their_lines() -> None:
    sampler = StackSampler()
    deep(30)
    found = sampler.stop()
    stack = max((found.stacks[stack] for stack in found.stack), key=len)
    names = [found.places[place].function for place in stack]
    around = [place.function for place in loop_samples.places_of_stack(sys._getframe())]
    assert names[-len(around) :] == around
    assert names.count("deep") == 31
    first = deep.__code__.co_firstlineno
    lines = {place.line for place in found.places if place.function == "deep"}
    assert lines <= set(range(first, first + 5))
    assert {place.file for place in found.places if place.function == "deep"} == {HERE}


def test_generators_and_names_that_are_not_ascii() -> None:
    def größe_日本() -> Iterator[None]:
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            yield

    sampler = StackSampler()
    for _ in größe_日本():
        pass
    assert any("größe_日本" in name for name in functions(sampler.stop()))


def test_times_are_in_order_and_of_the_system_s_clock() -> None:
    before = time.time_ns()
    sampler = StackSampler()
    wait()
    found = sampler.stop()
    assert before <= found.times_ns[0] <= found.times_ns[-1] <= time.time_ns()
    assert found.times_ns == tuple(sorted(found.times_ns))
    assert len(found.times_ns) == len(found.stack)


def test_python_sees_no_thread() -> None:
    threads, seen = threading.enumerate(), sys._current_frames().keys()
    interval = sys.getswitchinterval()
    sampler = StackSampler()
    assert threading.enumerate() == threads
    assert sys._current_frames().keys() == seen
    assert sys.getswitchinterval() == interval
    sampler.stop()


@pytest.mark.main
def test_a_long_window_keeps_samples_of_all_its_time() -> None:
    sampler = StackSampler(interval_ns=1000)  # so that they are thinned out soon
    begun, middle_ns = time.thread_time(), 0
    while (spent := time.thread_time() - begun) < 0.6:
        work()
        if spent < 0.3:
            middle_ns = time.time_ns()
    found = sampler.stop()
    assert 0 < len(found.times_ns) <= 1 << 15
    late = sum(time > middle_ns for time in found.times_ns)
    assert 0.1 < late / len(found.times_ns) < 0.9


def test_another_thread_may_stop_it() -> None:
    sampler, found = StackSampler(), []
    work()
    thread = threading.Thread(target=lambda: found.append(sampler.stop()))
    thread.start()
    thread.join()
    assert functions(found[0])["work"]
    assert not sampler.stop().times_ns


@pytest.mark.filterwarnings("ignore:os.fork")  # JAX's, where a test before this one imported it
def test_a_system_that_refuses_another_thread_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is not there cannot be joined."""
    sampler = StackSampler(1_000_000)
    work()
    library, stops = sampler._library, []
    refusing = SimpleNamespace(
        stepscope_start_sampler=lambda handle: 0,
        stepscope_stop_sampler=lambda handle: stops.append(library.stepscope_stop_sampler(handle)),
        stepscope_samples=library.stepscope_samples,
        stepscope_free_sampler=library.stepscope_free_sampler,
    )
    monkeypatch.setattr(sampler, "_library", refusing)
    found = [len(sampler.so_far().times_ns) for _ in range(3)]
    assert found[0] > 10
    assert found == [found[0]] * 3
    assert len(sampler.stop().times_ns) == found[0]
    assert len(stops) == 1


def test_a_forked_process_has_none_to_stop() -> None:
    sampler = StackSampler()
    child = os.fork()
    if not child:
        os._exit(len(sampler.stop().times_ns))
    assert os.waitpid(child, 0)[1] == 0
    work()
    assert sampler.stop().times_ns


def test_a_version_that_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 77))
    with pytest.raises(Unavailable, match=r"does not know how Python 3\.77 stores its frames"):
        StackSampler()


@pytest.mark.parametrize("version", [(3, 10), (3, 11), (3, 12), (3, 13)])
def test_a_layout_that_does_not_fit_is_not_used(
    version: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of another version reads garbage, or nothing, and never crashes."""
    if version == sys.version_info[:2]:
        monkeypatch.setattr(loop_samples, "places_of_stack", lambda frame: [])
    monkeypatch.setattr(sys, "version_info", version)
    with pytest.raises(Unavailable, match="stores its frames in another way"):
        StackSampler()


def test_where_there_is_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(loop_samples, "LIBRARY", tmp_path / "missing.so")
    assert LoopSamples().stop() == {
        "version": 1,
        "lacks": "the stepscope that recorded it had no compiled library",
    }


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPSCOPE_COMPILED", "off")
    assert "switched off" in LoopSamples().stop()["lacks"]


def test_a_system_that_refuses_copies_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_samples._library(), "stepscope_may_copy", lambda: 0)
    assert "process_vm_readv" in LoopSamples().stop()["lacks"]


def test_a_failure_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_samples.StackSampler, "__init__", lambda self: 1 // 0)
    assert LoopSamples().stop()["lacks"].startswith("sampling failed (ZeroDivisionError")


TORCH = "/torch/nn.py"
NUMPY = "/lib/numpy.py"
STACKS = StackSamples(
    times_ns=[10, 20, 30, 40, 50, 60],
    stack=[0, 1, 2, 3, 0, 4],
    stacks=[[0, 4, 5], [1, 4, 5], [2, 0, 5], [3], [1, 2, 5]],
    places=[
        Place("log", "/x/train.py", 3),
        Place("dot", NUMPY, 7),
        Place("call", TORCH, 9),
        Place("start", loop_samples._RECORDER + "/recorder.py", 1),
        Place("main", "/x/train.py", 8),
        Place("<module>", "/x/train.py", 9),
    ],
)


def test_the_line_of_the_program_that_a_stack_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library's function counts for the line that calls it, the recorder's for none."""
    monkeypatch.setattr(loop_samples, "LIBRARIES", ("/lib",))
    monkeypatch.setattr(loop_samples, "is_internal", lambda file: file.startswith("/torch"))
    found = describe(STACKS, [("log", "/x/train.py"), ("<module>", "/x/train.py")], [])
    assert [found["places"][place]["function"] for place in found["place"]] == [
        "log",
        "main",
        "log",
        "log",
        "<module>",
    ]
    assert found["since_unix_ns"] == 10
    assert found["after_ns"] == [0, 10, 20, 40, 50]
    assert [found["places"][place]["function"] for place in found["loop"]] == ["<module>"]


ENGINE, HANDLERS = "/lib/ignite/engine.py", "/lib/ignite/handlers/tensorboard.py"
PROGRAM = """
from ignite.handlers import GradsHandler

def update(engine, x):
    return x

trainer = Engine(update)
log.attach(trainer, GradsHandler(model))
trainer.run(data)
"""


@pytest.mark.parametrize(
    ("handler", "line"), [("GradsHandler.__call__", 8), ("Logger.write", 9), ("fire", 9), ("Engine.fire", 9)]
)
def test_a_callback_has_the_line_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, line: int
) -> None:
    """Where a library runs the loop; what the program's own function takes is its own."""
    monkeypatch.setattr(loop_samples, "LIBRARIES", ("/lib",))
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    own = str(script)
    places = [
        Place("histogram", NUMPY, 7),
        Place(handler, HANDLERS, 50),
        Place("Engine.fire", ENGINE, 30),
        Place("Engine.run", ENGINE, 20),
        Place("<module>", own, 9),
        Place("update", own, 5),
    ]
    stacks = [[0, 1, 2, 3, 4], [5, 3, 4], [3, 4]]
    samples = StackSamples(list(range(20)), [0] * 14 + [1] * 4 + [2] * 2, stacks, places)
    callers = [("update", own), ("Engine.run", ENGINE), ("<module>", own)]
    found = describe(samples, callers, [])
    assert found["places"] == [
        {"function": handler, "file": own, "line": line},
        {"function": "update", "file": own, "line": 5, "called": 2},
        {"function": "<module>", "file": own, "line": 9},
    ]
    assert found["loop"] == [2]


def test_a_helper_of_a_callback_counts_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_samples, "LIBRARIES", ("/lib",))
    script = tmp_path / "train.py"
    script.write_text(PROGRAM)
    places = [
        Place("norms", HANDLERS, 9),
        Place("GradsHandler.__call__", HANDLERS, 50),
        Place("Engine.run", ENGINE, 20),
        Place("<module>", str(script), 9),
    ]
    samples = StackSamples(list(range(20)), [0] * 20, [[0, 1, 2, 3]], places)
    callers = [("Engine.run", ENGINE), ("<module>", str(script))]
    [place] = describe(samples, callers, [])["places"]
    assert place == {"function": "GradsHandler.__call__", "file": str(script), "line": 8}


def test_what_a_coroutine_awaits_has_its_line() -> None:
    async def fetch() -> None:
        await asyncio.sleep(0.05)

    async def batches() -> AsyncIterator[int]:
        for number in range(3):
            await fetch()
            yield number

    async def train() -> dict[str, Any]:
        samples = LoopSamples()
        async for _ in batches():
            work()
        return samples.stop()

    found = asyncio.run(train())
    named = Counter(found["places"][place]["function"].rpartition(".")[2] for place in found["place"])
    first = fetch.__code__.co_firstlineno
    assert named["fetch"] > 10
    assert named["work"] + named["short"] > 10
    assert {"function": fetch.__qualname__, "file": HERE, "line": first + 1} in found["places"]


def test_the_selector_of_an_event_loop_is_as_before() -> None:
    async def train() -> bool:
        selector = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        samples = LoopSamples()
        was_watched = "select" in vars(selector)
        samples.stop()
        return was_watched and "select" not in vars(selector)

    assert asyncio.run(train())


def test_a_selector_that_the_program_has_wrapped_stays_wrapped() -> None:
    async def train() -> bool:
        selector: Any = asyncio.get_running_loop()._selector  # type: ignore[attr-defined]
        original = selector.select
        selector.select = theirs = lambda timeout=None: original(timeout)
        LoopSamples().stop()
        return vars(selector).get("select") is theirs

    assert asyncio.run(train())


def test_a_function_that_takes_nearly_all_time_is_not_the_loop() -> None:
    """It has not begun where sampling begins, inside a call of the loop."""
    places = [Place("preprocess", "/x/train.py", 3), Place("<module>", "/x/train.py", 9)]
    samples = StackSamples(list(range(20)), [0] * 20, [[0, 1]], places)
    found = describe(samples, [("<module>", "/x/train.py")], [])
    assert [found["places"][place]["function"] for place in found["loop"]] == ["<module>"]
    assert describe(samples, [("preprocess", "/x/train.py")], [])["loop"] == [0]


def test_the_script_of_our_command_calls_nothing_of_the_program() -> None:
    """A comprehension in the loop is at the line of the loop, around which our command runs."""
    inside, loop = Place("<genexpr>", "/x/train.py", 36), Place("<module>", "/x/train.py", 36)
    command = Place("<module>", "/x/bin/stepscope", 6)
    samples = StackSamples(list(range(20)), [0] * 20, [[0, 1, 2]], [inside, loop, command])
    [place] = describe(samples, [loop[:2], command[:2]], [])["places"]
    assert "called" not in place


def test_how_long_an_event_loop_waits_while_it_is_sampled() -> None:
    place = Place("fetch", "/x/train.py", 3)
    samples = StackSamples([100, 150, 200], [0] * 3, [[0]], [place])
    waits = [Wait(0, 110, place), Wait(140, 180, place)]
    assert describe(samples, [], waits)["awaited"] == 0.5
    assert describe(samples, [], [])["awaited"] == 0


def test_other_threads_are_at_the_program_s_lines_unless_they_wait() -> None:
    done, waits = threading.Event(), threading.Event()

    def poll() -> None:
        while not done.is_set():
            pass

    threads = [threading.Thread(target=target) for target in (poll, waits.wait)]
    for thread in threads:
        thread.start()
    found = lines_of_others()
    done.set()
    waits.set()
    for thread in threads:
        thread.join()
    assert {line["function"].rpartition(".")[2] for line in found if line["file"] == __file__} == {"poll"}


def test_other_threads_count_as_they_were_when_sampling_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fills a queue has filled it before all samples are described."""
    done = threading.Event()

    def fill() -> None:
        while not done.is_set():
            pass

    def described(*_: object) -> dict[str, Any]:
        done.set()
        thread.join()
        return {}

    thread = threading.Thread(target=fill)
    thread.start()
    monkeypatch.setattr(loop_samples, "describe", described)
    found = LoopSamples().stop()["others"]
    assert "fill" in {line["function"].rpartition(".")[2] for line in found}


def test_a_line_has_those_that_call_it_up_to_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the program's own files; a comprehension and the function around it are at one line."""
    monkeypatch.setattr(loop_samples, "LIBRARIES", ("/lib",))
    places = [
        Place("field.<locals>.<listcomp>", "/x/gp.py", 26),
        Place("field", "/x/gp.py", 26),
        Place("closure", "/x/gp.py", 41),
        Place("LBFGS.step", "/lib/lbfgs.py", 300),
        Place("solve", "/x/train.py", 56),
        Place("<module>", "/x/train.py", 70),
    ]
    samples = StackSamples(list(range(20)), [0] * 12 + [1] * 8, [[0, 1, 2, 3, 4, 5], [4, 5]], places)
    found = describe(samples, [("solve", "/x/train.py"), ("<module>", "/x/train.py")], [])
    called = [(one["function"], one.get("called")) for one in found["places"]]
    assert called == [("field.<locals>.<listcomp>", 1), ("closure", 2), ("solve", None)]
    assert found["loop"] == [2]


def test_what_the_library_found() -> None:
    def packed(*samples: tuple[int, int, int, int]) -> bytes:
        return struct.pack(f"{4 * len(samples) + 1}q", len(samples), *(n for one in samples for n in one))

    first, second = (5, 1, 0, 1), (9, 0, 77, 0)
    found = parse(packed(first, second) + b"1\0f\0/x.py\x007\x002\x000 0 \0\0")
    assert found == StackSamples((5, 9), (1, 0), [[0, 0], []], [Place("f", "/x.py", 7)], (0, 77), (1, 0))

    later = parse(packed(second, (10, 2, 0, 0)) + b"1\0g\0/y.py\x003\x001\x001 0 \0", found)
    places = [Place("f", "/x.py", 7), Place("g", "/y.py", 3)]
    assert later == StackSamples((9, 10), (0, 2), [[0, 0], [], [1, 0]], places, (77, 0), (0, 0))


def test_what_is_installed_beside_the_environment_is_no_line_of_the_program(tmp_path: Path) -> None:
    """As by `pip install --user`, or below an environment with `--system-site-packages`."""
    folders = [str(tmp_path / name) for name in ("user/site-packages", "system/dist-packages", "my-packages")]
    paths = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, "-c", "from stepscope.record import call_sites; print(call_sites.LIBRARIES)"]
    said = subprocess.check_output(command, env=os.environ | {"PYTHONPATH": paths}, text=True)
    assert [folder in said for folder in folders] == [True, True, False]
