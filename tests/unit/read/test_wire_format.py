"""The wire format of protocol buffers, of one message and of many at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from xspaces import message, part, varint

from stepscope.read.xplane.protobuf import BYTES, Damage, Field, Span, doubles, fields, padded, scan, signed

VALUES = st.one_of(st.integers(0, 2**64 - 1), st.floats(allow_nan=False), st.binary(max_size=20), st.text())
MESSAGES = st.lists(st.lists(st.tuples(st.integers(1, 2000), VALUES), max_size=6), max_size=6)


def places(parts: list[bytes]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    ends = np.cumsum([len(one) for one in parts], dtype=np.int64)
    return ends - np.array([len(one) for one in parts], np.int64), ends


def both_ways(parts: list[bytes]) -> tuple[list[list[Field]], list[list[Field]], int, int]:
    """The fields of some messages, read one after the other and at once, and the damages found."""
    data, (starts, ends) = b"".join(parts), places(parts)
    one, many = Damage(), Damage()
    found = [
        list(fields(data, Span(start, end), one))
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    rows = scan(padded(data), starts, ends, many)
    at_once: list[list[Field]] = [[] for _ in parts]
    for owner, number, kind, value, end in zip(*(c.tolist() for c in rows), strict=True):
        at_once[owner].append(Field(number, kind, value if kind else value % 2**64, end))
    return found, at_once, one.count, many.count


def test_one_message() -> None:
    data = message((1, 150), (2, "é"), (3, 0.5), (1, 2**64 - 1))
    damage = Damage()
    found = list(fields(data, Span(0, len(data)), damage))
    assert [(one.number, one.kind) for one in found] == [(1, 0), (2, BYTES), (3, 1), (1, 0)]
    assert found[0].value == 150
    assert data[found[1].value : found[1].end].decode() == "é"
    assert doubles(padded(data), np.array([found[2].value])).tolist() == [0.5]
    assert signed(found[3].value) == -1
    assert damage.count == 0


@given(messages=MESSAGES)
def test_many_at_once_are_read_as_one_after_the_other(messages: list[list[tuple[int, Any]]]) -> None:
    found, at_once, *damages = both_ways([message(*parts) for parts in messages])
    assert at_once == found
    assert [len(one) for one in found] == [len(parts) for parts in messages]
    assert damages == [0, 0]


def test_a_message_of_many_fields_costs_no_more_than_its_bytes() -> None:
    found, at_once, *damages = both_ways(
        [message(*((1 + at % 9, at) for at in range(20_000))), message((2, "x"))]
    )
    assert at_once == found
    assert damages == [0, 0]


@given(parts=st.lists(st.binary(max_size=30), max_size=6))
def test_any_bytes_are_read_up_to_the_same_damage(parts: list[bytes]) -> None:
    """Of a field that is cut, one message yields what is there of it; many at once do not."""
    found, at_once, one, many = both_ways(parts)
    for each, other in zip(found, at_once, strict=True):
        assert each[: len(other)] == other
        assert len(each) <= len(other) + 1
    assert one == many


def test_the_last_of_a_repeated_number_counts() -> None:
    data = message((1, 5), (1, 7))
    found = scan(padded(data), *places([data]), Damage())
    assert found.last(1, 1).tolist() == [7]
    assert found.last(2, 1, -1).tolist() == [-1]


def test_a_length_beyond_the_message() -> None:
    data = varint(1 << 3 | 2) + varint(2**63) + b"ab"
    damage = Damage()
    assert list(fields(data, Span(0, len(data)), damage)) == [Field(1, 2, len(data) - 2, len(data))]
    assert damage.count == 1


def test_field_numbers_of_zero_and_groups_are_no_fields() -> None:
    for key in (b"\x00", b"\x0b", b"\x0c", b"\x0e"):
        damage = Damage()
        data = key + part(2, 1)
        assert list(fields(data, Span(0, len(data)), damage)) == []
        assert damage.count == 1
