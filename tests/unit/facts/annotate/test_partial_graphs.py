"""Replays of CUDA graphs with varying work: a record that was lost, or a node that did not run."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from facts import warning_codes

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.missing_records import NOTES
from stepscope.trace.trace import Trace


def replays(counts: list[int], wait: str = "sync", kernel_us: int = 100) -> Trace:
    """A step per count: a graph of so many kernels of 100 us, which the CPU waits for or not."""
    lines, clock = [], 0
    for step, count in enumerate(counts):
        begin, clock = clock, clock + 10
        lines.append(f"main | {clock} {clock + 10} | cudaGraphLaunch | corr={step}")
        for number in range(count):
            at = clock + 20 + kernel_us * number
            lines.append(f"stream 7 | {at} {at + kernel_us} | k | corr={step}")
        done = clock + 20 + kernel_us * count
        if wait == "sync":
            lines.append(f"main | {clock + 15} {done + 5} | cudaStreamSynchronize")
        clock = done + 10 + (1000 if wait == "none" else 0)
        lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
    return annotate(drawn_trace("\n".join(lines)))


def notes(trace: Trace) -> set[str]:
    return set(warning_codes(trace)) & set(NOTES)


@pytest.mark.parametrize(
    "counts",
    [
        pytest.param([5, 5, 2, 5, 2, 5], id="the body of an if in most replays"),
        pytest.param([5, 2, 2, 2, 2, 5], id="in few"),
        pytest.param([3, 9, 5, 7, 4, 6], id="a while loop that runs a varying number of times"),
    ],
)
def test_nodes_that_run_in_some_replays_are_not_lost(counts: list[int]) -> None:
    assert notes(replays(counts)) == set()


def test_where_nothing_waits_for_a_replay_its_missing_work_is_doubtful() -> None:
    trace = replays([5, 5, 2, 5], wait="none")
    assert notes(trace) == {"graphs_vary"}
    (message,) = (row["message"] for row in trace["warnings"].rows() if row["code"] == "graphs_vary")
    assert message == (
        "1 of 4 graph launches have less recorded device work than others of their graph: "
        "some nodes did not run, or their records were lost"
    )


def test_a_pause_between_nodes_is_work_that_every_replay_lost() -> None:
    """Each step launches a graph; of three kernels the second, of 2 ms, is never recorded."""
    lines = []
    for step in range(3):
        begin = 3000 * step
        lines.append(f"main | {begin} {begin + 3000} | ProfilerStep#{step}")
        lines.append(f"main | {begin + 10} {begin + 20} | cudaGraphLaunch | corr={step}")
        lines.append(f"main | {begin + 30} {begin + 2500} | cudaStreamSynchronize")
        lines.append(f"stream 7 | {begin + 40} {begin + 140} | first | corr={step}")
        lines.append(f"stream 7 | {begin + 2140} {begin + 2440} | third | corr={step}")
    assert notes(annotate(drawn_trace("\n".join(lines)))) == {"work_missing"}


# -- a family of recordings with known truth


@dataclass
class Loop:
    """Steps that replay graphs with bodies; some records may be lost."""

    lines: list[str] = field(default_factory=list)
    kernels: list[tuple[int, int, int, str]] = field(default_factory=list)  # call, start, end, name
    waits: bool = True  # for each replay
    whole: dict[int, int] = field(default_factory=dict)  # us of work by call


def generated_loop(chance: random.Random) -> Loop:
    loop = Loop(waits=chance.random() < 0.7)
    graphs = [
        [(chance.choice(["node", "node", "if", "while"]), chance.randint(20, 300)) for _ in range(size)]
        for size in chance.sample(range(4, 12), chance.randint(1, 2))
    ]
    clock, call = 0, 0
    for step in range(chance.randint(6, 12)):
        begin = clock
        for number, graph in enumerate(graphs):
            clock += chance.randint(5, 200)
            loop.lines.append(f"main | {clock} {clock + 8} | cudaGraphLaunch | corr={call}")
            at = clock + 12
            for place, (kind, length) in enumerate(graph):
                times = {"node": 1, "if": chance.randint(0, 1), "while": chance.randint(1, 3)}[kind]
                for _ in range(times if step else {"while": 3}.get(kind, 1)):
                    took = round(length * chance.uniform(0.95, 1.05))
                    loop.kernels.append((call, at, at + took, f"g{number}_{place}"))
                    loop.whole[call] = loop.whole.get(call, 0) + took
                    at += took + 1
            if loop.waits:
                loop.lines.append(f"main | {clock + 9} {at + 3} | cudaStreamSynchronize")
            clock = at + 5 + (0 if loop.waits else chance.randint(0, 2000))
            call += 1
        clock += chance.randint(5, 100)
        loop.lines.append(f"main | {begin} {clock} | ProfilerStep#{step}")
    return loop


def check_lost_and_left_out(seed: int) -> None:
    chance = random.Random(seed)
    loop = generated_loop(chance)
    lost = dict.fromkeys(loop.whole, 0)
    rate = chance.choice([0.0, 0.0, 0.01, 0.05])
    lines = list(loop.lines)
    for call, start, end, name in loop.kernels:
        if call > 3 and chance.random() < rate:
            lost[call] += end - start
        else:
            lines.append(f"stream 7 | {start} {end} | {name} | corr={call}")
    said = notes(annotate(drawn_trace("\n".join(lines))))
    if any(lost.values()):
        assert said or all(lost[call] < 0.1 * loop.whole[call] for call in lost), (seed, lost)
    else:
        assert said <= (set() if loop.waits else {"graphs_vary"}), seed


@pytest.mark.parametrize("block", range(2))
def test_generated_replays(block: int) -> None:
    for seed in range(10 * block, 10 * block + 10):
        check_lost_and_left_out(seed)


@pytest.mark.full(every=4)
@pytest.mark.parametrize("block", range(8))
def test_all_generated_replays(block: int) -> None:
    for seed in range(1000 + 40 * block, 1040 + 40 * block):
        check_lost_and_left_out(seed)
