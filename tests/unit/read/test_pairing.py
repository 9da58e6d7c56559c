"""Begins and ends to slices; the files in `tests/golden/test_malformed.py` show the odd cases."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest
from reading import event, read_text, tables, warnings

from stepscope.read.chrome import slices
from stepscope.read.chrome.slices import SliceMark, pair
from stepscope.read.shared import WarningLog


def paired(text: str) -> list[str]:
    """Slices of marks like `a( b( )b )a`, each a microsecond after the last; `|` is no time."""
    marks, time = list[SliceMark](), 0
    for word in text.split():
        if word == "|":
            time -= 1
            continue
        ends = word.startswith(")")
        marks.append(SliceMark(len(marks), time, word.strip("()"), ends))
        time += 1
    log = WarningLog()
    found = sorted(pair(marks, time, log))
    slices = [f"{marks[one.row].name} {one.start_ns}-{one.end_ns}" for one in found]
    return slices + [f"! {code} {count}" for code, _, count in log.rows()]


@pytest.mark.parametrize(
    ("marks", "slices"),
    [
        ("", []),
        ("a( )a", ["a 0-1"]),
        ("a( b( )b )a", ["a 0-3", "b 1-2"]),
        ("a( a( )a )a", ["a 0-3", "a 1-2"]),
        ("a( b( ) )", ["a 0-3", "b 1-2"]),
        ("( ( ) )", [" 0-3", " 1-2"]),
        ("( a( ) )", [" 0-3", "a 1-2"]),
        ("a( | b( )b | )a", ["a 0-1", "b 0-1"]),
        ("a( b( )a | )b", ["a 0-2", "b 1-2"]),
        ("a( )a | b( )b", ["a 0-1", "b 1-2"]),
        ("a( b( )a", ["a 0-2", "b 1-2", "! begin_without_end 1"]),
        ("a( )b", ["a 0-1", "! end_of_other_name 1"]),
        ("a( )b )a", ["a 0-2", "! end_without_begin 1"]),
        ("a( )b a( )a", ["a 0-1", "a 2-3", "! end_of_other_name 1"]),
        (")a a( )a", ["a 1-2", "! end_without_begin 1"]),
    ],
)
def test_marks_make_slices(marks: str, slices: list[str]) -> None:
    assert paired(marks) == slices


def test_a_million_simultaneous_marks_cost_a_step_each() -> None:
    """The work is counted by how often a mark's name is looked at."""
    looks = 0

    class Name(str):
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal looks
            looks += 1
            return str.__eq__(self, other)

    looked = {}
    for count in (2_000, 4_000):
        names = [Name(f"call {number}") for number in range(count)]
        begins = [SliceMark(row, 0, name, False) for row, name in enumerate(names)]
        ends = [SliceMark(count + row, 0, name, True) for row, name in enumerate(names)]
        looks, log = 0, WarningLog()
        assert len(pair(begins + ends, 0, log)) == count
        looked[count] = looks
    assert looked[4_000] < 2.2 * looked[2_000]


@pytest.mark.parametrize("seed", range(20))
def test_balanced_marks_come_back_whatever_their_order_in_the_file(seed: int) -> None:
    chance = random.Random(seed)
    marks, opened, expected = list[SliceMark](), list[SliceMark](), set()
    for time in range(200):
        if opened and (chance.random() < 0.5 or time > 150):
            begin = opened.pop()
            marks.append(SliceMark(1000 + time, time, begin.name, True))
            expected.add((begin.row, begin.time_ns, time))
        elif time <= 150:
            opened.append(SliceMark(time, time, chance.choice("abc"), False))
            marks.append(opened[-1])
    chance.shuffle(marks)
    log = WarningLog()
    assert set(pair(marks, 999, log)) == expected | {(m.row, m.time_ns, 999) for m in opened}


@pytest.mark.parametrize("seed", range(40))
def test_the_compiled_match_agrees_with_pair(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks of three threads and two async groups: nested, unnamed, superfluous, at the same time."""
    chance = random.Random(seed)
    events: list[dict[str, Any]] = [event("whole", 0, 40)]
    is_odd, opened = seed % 2, dict[tuple[int, str], list[str]]()
    for _ in range(chance.randrange(80)):
        thread, phases = chance.randrange(3), chance.choice(["BE", "be"])
        open_names = opened.setdefault((thread, phases), [])
        ends = chance.random() < 0.5
        name = chance.choice("abc")
        if ends and open_names and not (is_odd and chance.random() < 0.1):
            name = chance.choice([open_names.pop(), ""])
        elif not ends:
            open_names.append(name)
        time = len(events) // (1 + is_odd)
        events.append({"ph": phases[ends], "name": name, "pid": 1, "tid": thread, "ts": time, "id": thread})
    text = json.dumps(events)
    matched = read_text(text)
    monkeypatch.setattr(slices, "_matches", lambda group, *_: np.full(len(group), -1))
    by_pair = read_text(text)
    assert tables(matched)["events"] == tables(by_pair)["events"]
    assert warnings(matched) == warnings(by_pair)
