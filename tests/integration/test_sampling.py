"""The sampler: it reads running threads' stacks, and must never harm them."""

from __future__ import annotations

import ctypes
import json
import mmap
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from collected import Collected

import stepscope
from stepscope.record.contexts import native_build

STRESS = Path(__file__).parents[2] / "benchmarks" / "sampling_stress_entry.py"
WORD = ctypes.sizeof(ctypes.c_void_p)
HEADER = 10 * WORD


@pytest.fixture(scope="module")
def extension():
    return native_build.load(torch)


def here(extension):
    """The frames of the caller of this function, as the sampler reads them and as Python does."""
    read = extension.read_frames(extension.innermost_frame())
    frame, known = sys._getframe(1), []
    while frame:
        known.append((frame.f_code.co_filename, _name(frame.f_code), frame.f_lineno))
        frame = frame.f_back
    return read[1:], known


def _name(code):
    return getattr(code, "co_qualname", code.co_name)


def nested(depth, innermost):
    return nested(depth - 1, innermost) if depth else innermost()


@pytest.mark.parametrize("depth", [0, 5, 400])
def test_the_stack_is_read_as_python_shows_it(extension, depth):
    read, known = nested(depth, lambda: here(extension))
    assert read
    assert read == known[: len(read)]


def test_generators_and_calls_through_c_are_read(extension):
    def generator():
        yield here(extension)

    read, known = next(iter(sorted([0], key=lambda _: 0) and next(generator()) for _ in "a"))
    assert read == known[: len(read)]
    assert any("genexpr" in name for _, name, _ in read)


def test_names_beyond_ascii_are_read(extension):
    names = {"here": here, "extension": extension}
    exec(compile("def größe_漢字():\n    return here(extension)\n", "file é.py", "exec"), names)
    read, _ = names["größe_漢字"]()
    assert read[0] == ("file é.py", "größe_漢字", 2)


def test_every_line_is_the_one_that_python_names(extension):
    names = {}
    gap = "\n" * 300
    source = f"def f(g):\n    a = [g(),\n{gap}         g()]\n    a += [g()]\n\n    return a\n"
    exec(compile(source, "lines.py", "exec"), names)
    found = names["f"](lambda: here(extension))
    assert [read[1] for read, _ in found] == [known[1] for _, known in found]


# -- torn structures


def garbage(rng, frame_bytes):
    """A number that might be found where a pointer should be."""
    return rng.choice(
        [
            0,
            1,
            8,
            2**64 - 1,
            2**63,
            0x4141414141414141,
            0xFFFF800000000000,
            rng.getrandbits(64),
            rng.getrandbits(47),
            rng.getrandbits(47) & ~7,
            id(None),
            id(torch),
            id(garbage),
            id(garbage.__code__),
            id("text"),
            id(int),
            ctypes.addressof(frame_bytes),
        ]
    )


def words_of(memory):
    return (ctypes.c_uint64 * (len(memory) // WORD)).from_buffer(memory)


def test_torn_frames_never_crash(extension):
    rng = random.Random(0)
    real = ctypes.string_at(extension.innermost_frame(), HEADER)
    for _ in range(10_000):
        memory = (ctypes.c_char * HEADER).from_buffer(bytearray(real))
        words = words_of(memory)
        for _ in range(rng.randint(1, 4)):
            words[rng.randrange(len(words))] = garbage(rng, memory)
        read = extension.read_frames(ctypes.addressof(memory))
        assert read is None or isinstance(read, list)


def test_torn_code_objects_never_crash(extension):
    rng = random.Random(1)
    real = ctypes.string_at(extension.innermost_frame(), HEADER)
    code_address = id(test_torn_code_objects_never_crash.__code__)
    code = ctypes.string_at(code_address, test_torn_code_objects_never_crash.__code__.__sizeof__())
    for _ in range(10_000):
        copy = (ctypes.c_char * len(code)).from_buffer(bytearray(code))
        words = words_of(copy)
        for _ in range(rng.randint(1, 4)):
            words[rng.choice((0, *range(2, len(words))))] = garbage(rng, copy)
        memory = (ctypes.c_char * HEADER).from_buffer(bytearray(real))
        frame = words_of(memory)
        moved = ctypes.addressof(copy) - code_address
        for i, word in enumerate(frame):
            if code_address <= word < code_address + len(code):
                frame[i] = word + moved
        read = extension.read_frames(ctypes.addressof(memory))
        assert read is None or isinstance(read, list)


def test_addresses_without_memory_never_crash(extension):
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        gone = ctypes.addressof(ctypes.c_char.from_buffer(page))
    for address in (0, 8, 7, gone, gone + mmap.PAGESIZE - 16, 2**47 - 8, 2**64 - 8, 2**63):
        assert extension.read_frames(address) in (None, [])


def test_a_circle_of_frames_ends(extension):
    memory = bytearray(ctypes.string_at(extension.innermost_frame(), HEADER))
    frame = (ctypes.c_char * HEADER).from_buffer(memory)
    for i in range(HEADER // WORD):
        before = words_of(frame)[i]
        words_of(frame)[i] = ctypes.addressof(frame)
        extension.read_frames(ctypes.addressof(frame))
        words_of(frame)[i] = before


def test_the_library_s_table_of_layouts_is_the_headers(extension, library):
    version = sys.version_info[0] << 8 | sys.version_info[1]
    numbers = (ctypes.c_uint32 * 64)()
    count = ctypes.CDLL(str(library)).stepscope_known_layout(version, numbers)
    if version < 0x030E:
        assert count
    assert bytes(numbers)[: 4 * count] == extension.layout()[: 4 * count]


# -- shares


def run_script(tmp_path, *options, seconds="2"):
    capture, truth = tmp_path / "run.stepscope", tmp_path / "truth.json"
    command = [
        sys.executable,
        "-m",
        "stepscope",
        "run",
        "--contexts",
        *options,
        "-o",
        str(capture),
        str(STRESS),
        seconds,
        str(truth),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return Collected.read(capture), json.loads(truth.read_text())


@pytest.mark.parametrize("native", [(), ("--native",)])
def test_threads_that_recurse_raise_and_compile_are_sampled_without_harm(tmp_path, native):
    options = ("--sample", "5000", "--sample-real", "2000", *native)
    run, truth = run_script(tmp_path, *options)
    sums = dict.fromkeys(truth["real"], 0)
    for context in run.contexts:
        names = [one.name for one in context.path]
        kind = next((kind for kind in sums if kind in names), None)
        if kind and "take_turns" in names and "sampled_real_ns" in context.metrics:
            sums[kind] += context.metrics["sampled_real_ns"]["sum"]
    for kind, seconds in truth["real"].items():
        share = seconds / sum(truth["real"].values())
        assert abs(sums[kind] / sum(sums.values()) - share) < 0.08, (kind, share, sums)


def collect(work, tmp_path, **options):
    path = tmp_path / "run.stepscope"
    with stepscope.record_contexts(path, **options):
        work()
    return Collected.read(path)


def total(contexts, metric):
    return sum(one.metrics[metric]["sum"] for one in contexts if metric in one.metrics)


def busy(seconds):
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(500))


def test_cpu_time_counts_where_it_is_spent_not_where_the_thread_sleeps(tmp_path):
    """Elapsed time counts in the sleep for as long as it took, and nearly no CPU time."""
    spent, slept = [], []

    def doze():
        begun = time.perf_counter()
        time.sleep(0.003)
        slept.append(time.perf_counter() - begun)

    def work():
        begun = time.perf_counter()
        for _ in range(100):
            busy(0.001)
            doze()
        spent.append(time.perf_counter() - begun)

    run = collect(work, tmp_path, sample=2000, sample_real=2000)
    asleep = [c for c in run.contexts if any(p.name.endswith("doze") for p in c.path)]
    metrics = "sampled_cpu_ns", "sampled_real_ns"
    shares = [total(asleep, metric) / total(run.contexts, metric) for metric in metrics]
    # Waking up takes CPU time, the more the busier the machine is.
    assert shares[0] < 0.3
    assert shares[1] == pytest.approx(sum(slept) / sum(spent), abs=0.15)


def test_short_operators_count_where_they_are_called(tmp_path):
    """Nearly no stack is read without an operator's begin or end meanwhile."""

    def operate():
        until = time.thread_time() + 0.5
        while time.thread_time() < until:
            torch.sum(torch.ones(4))

    run = collect(operate, tmp_path, sample=5000)
    inside = [c for c in run.contexts if any(p.name.endswith("operate") for p in c.path)]
    threads = {c.path[1].name for c in inside}
    own = [c for c in run.contexts if len(c.path) > 1 and c.path[1].name in threads]
    metric = "sampled_cpu_ns"
    assert total(inside, metric) > 0.9 * total(own, metric)


def test_no_signal_reaches_the_program(tmp_path):
    seen = []
    before = signal.signal(signal.SIGPROF, lambda *_: seen.append(1))
    try:
        run = collect(lambda: busy(0.3), tmp_path, sample=1000, sample_real=1000)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert not seen
    assert total(run.contexts, "sampled_cpu_ns") > 0


def test_all_time_of_a_thread_counts_and_none_twice(tmp_path):
    def work():
        torch.ones(1)
        busy(0.2)

    def in_thread():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    before = time.process_time_ns()
    run = collect(in_thread, tmp_path, sample=200)
    spent = time.process_time_ns() - before
    assert 0.19e9 < total(run.contexts, "sampled_cpu_ns") <= spent
