"""Pickles as plain data: what Python's own loader gives, and nothing that could run."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.errors import IngestError
from stepscope.read.memory_snapshot.safe_pickle import load

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
KEYS = st.text() | st.integers(-(1 << 31), 1 << 31)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(KEYS, inner)
        | st.tuples(inner)
        | st.tuples(inner, inner, inner, inner)
    ),
    max_leaves=30,
)


@given(value=PLAIN, protocol=st.integers(2, 5))
def test_plain_data_are_what_pickle_gives(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@given(value=st.binary(max_size=70000), protocol=st.integers(4, 5))
def test_bytes(value: Any, protocol: int) -> None:
    assert load(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("size", [0, 300, 70_000])
def test_half_of_a_surrogate_pair_is_a_question_mark(size: int, protocol: int) -> None:
    given, found = "é\ud800" + "a" * size, "é?" + "a" * size
    assert load(pickle.dumps([{given: given}, given], protocol)) == [{found: found}, found]


def test_an_object_that_occurs_twice_is_one() -> None:
    shared = ["frame"]
    first, second = load(pickle.dumps([shared, shared]))
    assert first is second


def test_the_sink_uses_up_items_in_batches() -> None:
    batches = []

    def sink(target: list[Any], items: list[Any]) -> bool:
        if items and isinstance(items[0], dict):
            batches.append(len(items))
            return True
        return False

    value = {"events": [{"a": number} for number in range(2500)], "names": ["x", "y"]}
    assert load(pickle.dumps(value), sink) == {"events": [], "names": ["x", "y"]}
    assert batches == [1000, 1000, 500]


class Runs:
    """Pickles as a call of a function."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


HOSTILE = [
    (os.system, "touch {mark}"),
    (subprocess.check_call, ["touch", "{mark}"]),
    (eval, "1"),
    (exec, "open('{mark}', 'w')"),
    (open, "{mark}", "w"),
    (os.mkdir, "{mark}"),
    (getattr, "", "x"),
    (__import__, "os"),
    (print, "x"),
    (Path, "x"),
    (bytearray, 1 << 40),
    (range, 5),
    (complex, 1),
]
PLACES: list[Callable[[Any], Any]] = [
    lambda one: one,
    lambda one: [one],
    lambda one: {"segments": [one]},
    lambda one: {"device_traces": [[{"action": one, "addr": 1}]]},
]


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("place", range(len(PLACES)))
@pytest.mark.parametrize("call", HOSTILE, ids=lambda call: getattr(call[0], "__name__", "call"))
def test_nothing_of_a_hostile_pickle_runs(
    call: tuple[Any, ...], place: int, protocol: int, tmp_path: Path
) -> None:
    mark = str(tmp_path / "mark")
    function, *arguments = (part.replace("{mark}", mark) if isinstance(part, str) else part for part in call)
    data = pickle.dumps(PLACES[place](Runs(function, *arguments)), protocol)
    with pytest.raises(IngestError, match="could run code are refused"):
        load(data)
    assert not Path(mark).exists()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "damaged or cut off"),
        (b"\x80\x04", "damaged or cut off"),
        (b"\x80\x04.", "damaged or cut off"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7fab.", "damaged or cut off"),
        (b"\x80\x04T\xff\xff\xff\xffab.", "damaged"),
        (b"\x80\x02j\x05\x00\x00\x00.", "damaged"),
        (b"\x80\x04K\x01K\x02s.", "damaged"),
        (b"\x80\x04(]]u.", "damaged"),
        (b"\x80\x04\xee.", "unknown opcode 0xee"),
        (b"\x80\x04I" + b"9" * 5000 + b"\n.", "more than plain data \\(INT\\)"),
        (b"\x80\x04\x96\xff\xff\xff\xff\xff\xff\xff\x7f.", "more than plain data \\(BYTEARRAY8\\)"),
        (b"\x80\x04}" + b")" + b"\x85" * 100_000 + b"Ns.", "a key is a tuple"),
        (b"\x80\x04\x82\x01.", "could run code are refused"),
        (b"\x80\x04P1\n.", "could run code are refused"),
    ],
)
def test_damage_is_one_clear_line(data: bytes, message: str) -> None:
    with pytest.raises(IngestError, match=message) as caught:
        load(data)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("objects", [b"(" + b"]" * 2000 + b"t.", b"N" + b"\x94" * 2000 + b"."])
def test_many_objects_in_few_bytes_are_refused(objects: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.read.memory_snapshot.safe_pickle._MOST_VALUES", 1000)
    with pytest.raises(IngestError, match="more than 1,000 lists and dicts"):
        load(b"\x80\x04" + objects)


def test_deep_nesting_needs_no_deep_stack() -> None:
    value = load(b"\x80\x04" + b"]" * 100_000 + b"a" * 99_999 + b".")
    assert len(value) == 1


@settings(max_examples=400)
@given(seed=st.integers(0, 1 << 30))
def test_mutations_are_read_or_refused(seed: int) -> None:
    chance = random.Random(seed)
    value = {"segments": [{"blocks": [{"size": 5, "frames": []}], "device": 0}] * 3, "x": "y" * 9}
    data = bytearray(pickle.dumps(value, chance.randint(2, 5)))
    for _ in range(chance.randint(1, 6)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    with suppress(IngestError):  # any other error fails the test
        load(bytes(data[: chance.randint(1, len(data))]))
