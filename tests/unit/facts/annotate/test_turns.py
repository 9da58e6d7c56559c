"""Optimizers of one class that step in turns: torch names their updates alike."""

from __future__ import annotations

import random

import numpy as np
import pytest
from facts import us, warning_codes

from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.steps.steps import find_steps
from stepscope.facts.annotate.steps.turns import _alike, _cycle, _turn
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

# What an update runs, and how many gradients the pass before it computes. Capitals also create state.
UPDATES = {
    "d": (["aten::add_"] * 3, 2),
    "g": (["aten::add_"] * 4, 3),
    "D": ([*["aten::zeros_like"] * 3, *["aten::add_"] * 3], 2),
    "G": ([*["aten::zeros_like"] * 4, *["aten::add_"] * 4], 3),
    "p": (["aten::add_"] * 3, 3),  # as d, after another pass
    "s": (["aten::_fused_adam_ | Input_Dims=[[[4,4],[4]]]"], 2),
    "t": (["aten::_fused_adam_ | Input_Dims=[[[8,4],[8]]]"], 2),
    "k": (["cudaLaunchKernel | grid=[3,1,1]"], 2),
    "l": (["cudaLaunchKernel | grid=[4,1,1]"], 2),
    "a": ([*["aten::add_"] * 4, "aten::copy_"], 2),  # as an average of d's parameters, now and then
}
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def loop(sequence: str) -> Trace:
    """A loop whose updates have the letters of a sequence; `|` loads a batch."""
    lines: list[str] = []
    at = 0

    def event(name: str, length: int = 2) -> None:
        nonlocal at
        name, _, options = name.partition(" | ")
        corr = f" corr={at}" if name.startswith("cuda") else ""
        lines.append(f"main | {at} {at + length} | {name} |{corr} {'' if corr else options}")
        if corr:
            lines.append(f"stream 7 | {at + 1} {at + 2} | multi_tensor_apply | corr={at} {options}")
        at += length

    for letter in sequence:
        if letter == "|":
            event(LOADER)
            continue
        runs, nodes = UPDATES[letter]
        number = at
        for node in range(nodes):
            event(f"aten::mm | seq={number + node}")
        for node in reversed(range(nodes)):
            event(f"MmBackward0 | seq={number + node} fwd=1")
        lines.append(f"main | {at} {at + 2 * len(runs)} | Optimizer.step#Adam.step")
        for name in runs:
            event(name)
    return find_steps(link_launches(drawn_trace("\n".join(lines))))


@pytest.mark.parametrize(
    ("sequence", "steps", "is_certain"),
    [
        ("dg" * 3, 3, True),
        ("DG" + "dg" * 3, 4, True),
        ("dddddg" * 2, 2, True),
        ("|d|d|d|d|dg" * 2, 2, True),  # a batch for each update of the critic
        ("st" * 3, 3, True),  # of one operator each
        ("kl" * 3, 3, True),
        ("dg" * 2, 4, False),  # too few
        ("|dg" * 2, 2, True),
        ("|dp" * 3, 3, True),  # of models with as many parameters
        ("dp" * 3, 6, False),
        ("da" * 3, 6, False),
        ("d" * 6, 6, True),
        ("|dd" * 3, 6, True),  # two updates with each batch
        ("||d" * 3, 3, True),  # gradients of two batches
        ("|d|p" * 3, 6, True),  # two tasks in turn
        ("|d|g" * 3, 6, True),
        ("dgdddggd", 8, True),  # parameters that have no gradients now and then
    ],
)
def test_updates_of_one_class(sequence: str, steps: int, is_certain: bool) -> None:
    trace = loop(sequence)
    assert us(trace, "steps", "evidence") == [("optimizer",)] * steps
    assert warning_codes(trace) == ({} if is_certain else {"steps_inferred": 1})


@pytest.mark.parametrize("seed", range(100))
def test_any_loop_of_two_optimizers(seed: int) -> None:
    choose = random.Random(seed)
    critic, generator = choose.choice(["dg", "gd", "st", "kl"])
    before = choose.choice(["", "|"])
    several = choose.randint(2, 6)
    turn = choose.choice([before + critic * several, (before + critic) * several, before + critic])
    count = choose.randint(4, 8)
    assert len(loop((turn + generator) * count)["steps"]) == count


@pytest.mark.parametrize("seed", range(100))
def test_any_loop_of_one_optimizer(seed: int) -> None:
    """Passes may differ by chance or in turn, and a batch may be accumulated or used again."""
    choose = random.Random(seed)
    letters = "dp" * 4 if seed % 2 else choose.choices("dp", k=8)
    batch = choose.choice(["|", "||", "|" if not seed % 2 else ""])
    trace = loop("".join(batch + letter for letter in letters))
    assert len(trace["steps"]) + warning_codes(trace).get("cut_off_step", 0) == 8


@pytest.mark.parametrize(
    ("keys", "cycle"),
    [
        ("abab", (2, 2)),
        ("ababab", (2, 4)),
        ("aab" * 3, (3, 6)),
        ("aaaa", (0, 0)),  # no different keys
        ("abc", (0, 0)),
        ("abcd", (0, 0)),
        ("xyabab", (2, 2)),  # the first cycle differs
        ("xyab", (0, 0)),
        ("", (0, 0)),
        ("abba", (0, 0)),
    ],
)
def test_the_shortest_cycle_of_different_keys(keys: str, cycle: tuple[int, int]) -> None:
    assert _cycle(np.array([ord(key) for key in keys], np.int64)) == cycle


def test_a_cycle_has_at_most_so_many_updates() -> None:
    for length, found in ((101, 101), (102, 0)):
        keys = np.array([0] * (length - 1) + [1] + [0] * (length - 1) + [1])
        assert _cycle(keys)[0] == found


@pytest.mark.parametrize(
    ("changed", "ran", "passed", "loaded", "turn"),
    [
        ("ababab", "xxxxxx", "pppppp", "111111", 2),
        ("ababab", "yyxxxx", "pppppp", "111111", 2),  # the first cycle also creates its state
        ("ababab", "xxxyxx", "pppppp", "111111", 0),  # of other operators
        ("abab", "xxxx", "pppp", "1111", 0),  # too few
        ("abab", "xxxx", "pqpq", "1010", 2),  # a batch for each turn
        ("abab", "xxxx", "pqpq", "1111", 0),
        ("aaaaaa", "xxxxxx", "pqrpqr", "100100", 3),
        ("aaaaaa", "xxxxxx", "pqrpqr", "110110", 0),
    ],
)
def test_a_turn_shows_in_what_updates_change_or_in_passes_of_one_batch(
    changed: str, ran: str, passed: str, loaded: str, turn: int
) -> None:
    columns = (np.array([ord(key) for key in keys], np.int64) for keys in (changed, ran, passed))
    keys, found = _turn(*columns, np.array([one == "1" for one in loaded]))
    assert found == turn
    assert keys.tolist() == [ord(key) for key in (changed if turn == 2 and len(changed) == 6 else passed)]


def test_groups_with_each_key_as_often_are_alike() -> None:
    found = _alike(np.array([0, 1, 1, 0, 0, 1, 2]), np.array([0, 0, 1, 1, 2, 2, 3]), 4).tolist()
    assert found[0] == found[1] == found[2] != found[3]
    twice = _alike(np.array([0, 0, 0, 5]), np.array([0, 0, 1, 3]), 3).tolist()
    assert twice[0] == 2 * twice[1] != 0
    assert twice[2] == 0
    assert _alike(np.zeros(0, np.int64), np.zeros(0, np.int64), 2).tolist() == [0, 0]
