from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arguments import ArgumentBlock, Arguments, parse

objects = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=3)


@given(st.lists(st.lists(objects, min_size=1, max_size=4), max_size=3))
def test_each_event_gets_its_own(blocks: list[list[dict[str, object]]]) -> None:
    source, made, expected = 0, [], {}
    for block in blocks:
        sources = [source + 2 * row for row in range(len(block))]  # odd ones have none
        made.append(ArgumentBlock.of(sources, [json.dumps(one).encode() for one in block]))
        expected |= dict(zip(sources, block, strict=True))
        source = sources[-1] + 2
    arguments = Arguments(tuple(made))
    assert {n: arguments.of(n) for n in range(-1, source + 1)} == {
        n: expected.get(n, {}) for n in range(-1, source + 1)
    }
    assert {n: parse(text) for n, text in arguments.items()} == expected
    asked = np.random.default_rng(0).permutation(np.arange(-1, source + 1))
    assert [parse(text) for text in arguments.texts(asked)] == [expected.get(n, {}) for n in asked.tolist()]


def test_shifted_blocks_are_found_at_their_new_place() -> None:
    block = ArgumentBlock.of([0, 2], [b'{"a": 1}', b'{"b": 2}']).shifted(10)
    arguments = Arguments((block,))
    assert (arguments.of(2), arguments.of(10), arguments.of(12)) == ({}, {"a": 1}, {"b": 2})


def test_what_is_no_object_is_kept_as_a_value() -> None:
    assert parse(b"[1, 2]") == {"value": [1, 2]}


def test_control_characters_and_bytes_that_are_not_utf8_are_read() -> None:
    assert parse(b'{"a": "x\ty\xff"}') == {"a": "x\ty�"}


@pytest.mark.parametrize("sizes", [[], [5], [3, 4], [8], [9, 1, 1], [2, 20, 2], [1] * 30])
def test_many_texts_lie_in_several_blocks(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.trace.arguments._BLOCK_BYTES", 8)
    texts = [bytes([97 + row % 26]) * size for row, size in enumerate(sizes)]
    ends = np.cumsum(np.array(sizes, np.int64))
    blocks = ArgumentBlock.several(range(0, 2 * len(sizes), 2), ends, b"".join(texts))
    items = [(2 * row, text) for row, text in enumerate(texts)]
    assert list(Arguments(tuple(blocks)).items()) == items
    assert len(blocks) == len({(end - 1) // 8 for end in ends})
