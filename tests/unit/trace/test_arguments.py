from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.trace.arguments import (
    ArgumentBlock,
    Arguments,
    GrowingArguments,
    arrow_bytes,
    arrow_numbers,
    arrow_octets,
    arrow_text,
    bytes_of,
    element_bytes,
    parse,
)

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


def test_events_between_and_after_others_have_none() -> None:
    texts = {2: b'{"a": 1}', 4: b'{"b": 2}', 8: b'{"c": 3}'}
    blocks = (ArgumentBlock.of([2, 4], [texts[2], texts[4]]), ArgumentBlock.of([8], [texts[8]]))
    arguments = Arguments(blocks)
    assert [arguments.text(source) for source in range(10)] == [texts.get(source) for source in range(10)]
    asked = [8, 3, 0, 2, 9, 4, 5]
    assert arguments.texts(np.array(asked)) == [texts.get(source, b"{}") for source in asked]
    assert list(arguments.items()) == [*texts.items()]
    parts = arguments.parts(np.array([0, 3, 4, 5]))
    assert [(int(block.sources[0]), part) for block, part in parts] == [(2, slice(1, 4))]
    assert [type(block.packed) for block in blocks] == [bytes, bytes]
    assert {block.sources.dtype for block in blocks} == {np.dtype(np.int32)}


def test_texts_of_some_events_are_a_block_and_no_texts_are_none() -> None:
    sources = np.array([3, 5, 9])
    (block,) = ArgumentBlock.written(sources, [b'{"a": 1}', b"", b"{}"])
    assert (block.sources.tolist(), block.ends.tolist(), block.text()) == ([3, 9], [8, 10], b'{"a": 1}{}')
    assert ArgumentBlock.written(sources, [b"", b"", b""]) == []
    assert ArgumentBlock.of([], []).text() == b""


def test_blocks_that_are_added_lie_end_to_end() -> None:
    growing = GrowingArguments()
    growing.add(ArgumentBlock.of([0, 1], [b'{"a": 1}', b"{}"]), 0)
    growing.add(ArgumentBlock.of([0], [b'{"b": 2}']), 5)
    found = growing.finished()
    assert list(found.items()) == [(0, b'{"a": 1}'), (1, b"{}"), (5, b'{"b": 2}')]
    assert (len(found.blocks), found.of(5), found.text(4)) == (2, {"b": 2}, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"[1, 2]", {"value": [1, 2]}),
        (b"7", {"value": 7}),
        (b"null", {}),
        (b'{"a": {"b": null}}', {"a": {"b": None}}),
        (b'{"a": Infinity}', {"a": float("inf")}),
        (b'{"a": "x\ty\xff"}', {"a": "x\ty�"}),  # control characters, and bytes that are not UTF-8
        (b"{\xff", {"value": "{�"}),
        (b"1" * 5000, {"value": "1" * 5000}),
        (b"[" * 100_000, {"value": "[" * 100_000}),
    ],
)
def test_what_is_no_object_is_kept_as_a_value(text: bytes, value: dict[str, object]) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        *(("Input Dims", value, isinstance(value, list)) for value in ([[2, 3], 5], [], "x", {}, 3)),
        *(("Input Strides", [[3, 1]], True), ("Input Strides", 3, False)),
        *(("Concrete Inputs", ["", "1"], True), ("Concrete Inputs", {}, False)),
        *(("Input type", ["float"], True), ("Input type", ["float", 1], False)),
        *(("block", [32, 1, 1], True), ("block", [32, "1"], False), ("grid", "(1, 2)", True)),
    ],
)
def test_lists_of_pytorch_that_are_none_are_left_out(name: str, value: object, kept: bool) -> None:
    text = json.dumps({name: value, "stream": 7}).encode()
    assert parse(text) == ({name: value} if kept else {}) | {"stream": 7}


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("Input Dims", "[[64], [8, 4], []]", [[64], [8, 4], []]),
        ("Input type", "['float', 'Scalar']", ["float", "Scalar"]),
        ("Input type", '["float", ""]', ["float", ""]),
        ("Input type", "[1]", None),
        ("Input Dims", "[[1, 7168], ...]", None),
        ("Input Dims", "[" * 100_000, None),
    ],
)
def test_lists_that_other_tools_write_as_texts_are_lists(name: str, text: str, value: object) -> None:
    known = {} if value is None else {name: value}
    assert parse(json.dumps({name: text, "stream": 7}).encode()) == known | {"stream": 7}


def test_a_block_holds_about_a_mebibyte() -> None:
    ends = np.array([1 << 20, (1 << 20) + 1, (1 << 20) + 5])
    blocks = ArgumentBlock.several([0, 1, 2], ends, b"x" * int(ends[-1]))
    assert [block.ends.tolist() for block in blocks] == [[1 << 20], [1, 5]]


@pytest.mark.parametrize("sizes", [[], [5], [3, 4], [8], [9, 1, 1], [2, 20, 2], [1] * 30])
def test_many_texts_lie_in_several_blocks(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.trace.arguments._BLOCK_BYTES", 8)
    texts = [bytes([97 + row % 26]) * size for row, size in enumerate(sizes)]
    ends = np.cumsum(np.array(sizes, np.int64))
    blocks = ArgumentBlock.several(range(0, 2 * len(sizes), 2), ends, b"".join(texts))
    items = [(2 * row, text) for row, text in enumerate(texts)]
    assert list(Arguments(tuple(blocks)).items()) == items
    assert len(blocks) == len({(end - 1) // 8 for end in ends})


def test_arrow_has_null_where_a_number_or_a_text_is_missing() -> None:
    values, null = np.array([7, -1, 5, 6, 9, 8])[::2], np.array([False, True, False])
    assert arrow_numbers(values, null).to_pylist() == [7, None, 9]
    assert arrow_numbers(values, ~null).to_pylist() == [None, 5, None]
    assert arrow_numbers(values, null & False).null_count == 0
    assert arrow_text(np.array([0, -1, 1], np.int8), ["ü", "b"]).to_pylist() == ["ü", None, "b"]


def test_byte_strings_of_arrow_are_those_put_in() -> None:
    texts = [b"ab", b"", b"c"]
    octets = arrow_octets([np.frombuffer(text, np.uint8) for text in texts])
    assert arrow_bytes(texts).to_pylist() == octets.to_pylist() == texts
    assert [part.tobytes() for part in bytes_of(octets)] == texts
    assert [part.tobytes() for part in bytes_of(octets.slice(1, 1))] == [b""]


@pytest.mark.parametrize(
    ("size", "kinds"),
    [
        (16, ["c10::complex<double>"]),
        (8, ["double", "long", "long int", "int64_t", "c10::complex<float>"]),
        (4, ["float", "int", "Float"]),
        (2, ["c10::Half", "c10::BFloat16", "short", "short int"]),
        (1, ["bool", "unsigned char", "signed char", "char", "Byte", "c10::Float8_e4m3fn"]),
        (0, ["Scalar", "", "float8"]),
    ],
)
def test_an_element_of_a_type_has_its_bytes(size: int, kinds: list[str]) -> None:
    assert [element_bytes(kind) for kind in kinds] == [size] * len(kinds)
