"""Timestamps as text to exact nanoseconds."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.read.chrome.chunk import INVALID, LIMIT_NS, nanoseconds


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("0", 0),
        ("1", 1000),
        ("-2.5", -2500),
        ("1712195495505582.988", 1712195495505582988),
        ('"1712195495505582.988"', 1712195495505582988),
        ("1.7121954955055829e15", 1712195495505582900),
        ("1e3", 1_000_000),
        ("0.0004", 0),
        ("170741751e-725512145", 0),  # Arrow's conversion reads outside of its memory
        ("0.0006", 1),
        ("1234567890123456.7891", 1234567890123456789),
        ('" 12 "', 12_000),
    ],
)
def test_what_can_be_told(text: str, ns: int) -> None:
    assert nanoseconds([text.encode()]).tolist() == [ns]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "true",
        "[1]",
        '{"a": 1}',
        '"soon"',
        "NaN",
        "Infinity",
        "-Infinity",
        "1e18",
        "-1e18",
        "1e400",
        "1e999999999",
        '"é"',
        "9" * 100_000,
        "0x10",
    ],
)
def test_what_cannot_be_told_is_marked_and_leaves_the_others_exact(text: str) -> None:
    texts = [text.encode(), b"1712195495505582.988"]
    assert nanoseconds(texts).tolist() == [INVALID, 1712195495505582988]


def test_one_very_long_text_among_many_takes_no_memory_for_each() -> None:
    texts = [b"1.0001"] * 100_000 + [b"0." + b"1" * 1_000_000]
    assert nanoseconds(texts).tolist() == [1000] * 100_000 + [111]


@given(st.lists(st.integers(-LIMIT_NS + 1, LIMIT_NS - 1), min_size=1))
def test_every_nanosecond_is_exact(times: list[int]) -> None:
    texts = [str(Decimal(time).scaleb(-3)).encode() for time in times]
    assert nanoseconds(texts).tolist() == times


@given(st.lists(st.decimals(-(2**39), 2**39, places=6), min_size=1))
def test_finer_times_are_rounded_to_a_nanosecond(times: list[Decimal]) -> None:
    found = nanoseconds([str(time).encode() for time in times]).tolist()
    assert all(abs(ns - time * 1000) <= Decimal("0.6") for ns, time in zip(found, times, strict=True))
