"""Calls of one operator with equal arguments are found by the compiled code as by the decoder."""

import json
from random import Random

import numpy as np
import pytest

from stepscope.base.arrays import Ids
from stepscope.facts.roofline.operator_work import WORK, Counted, compiled_equal_calls, key_of

Calls = tuple[bytes, Ids, Ids, Ids]


def calls_of(texts: list[str], names: list[int]) -> Calls:
    """Texts of arguments end to end, as `compiled_equal_calls` takes them."""
    encoded = [text.encode() for text in texts]
    ends = np.cumsum([len(text) for text in encoded])
    starts = ends - np.array([len(text) for text in encoded])
    return b"".join(encoded), starts, ends, np.array(names)


def equal_calls_in_python(
    text: bytes, starts: Ids, ends: Ids, names: Ids, counted: Counted = WORK
) -> list[int]:
    """The specification of `native/equal_calls.cpp`, with the decoder."""
    known: dict[object, int] = {}
    first = []
    calls = zip(starts.tolist(), ends.tolist(), names.tolist(), strict=True)
    for row, (start, end, name) in enumerate(calls):
        key = key_of(name, text[start:end] or b"{}", counted)
        first.append(row if key is None else known.setdefault(key, row))
    return first


def test_calls_of_one_name_with_the_same_dims_are_equal_whatever_else_differs() -> None:
    texts = [
        '{"Input Dims": [[2]], "External id": 1}',
        '{"External id": 2, "Input Dims": [[2]]}',
        '{"Input Dims": [[3]], "External id": 1}',
        '{"Input Dims": [[2]]}',
    ]
    assert equal_calls_in_python(*calls_of(texts, [7, 7, 7, 8])) == [0, 0, 2, 3]


def test_without_dims_the_name_alone_counts() -> None:
    texts = ["", "{}", '{"Concrete Inputs": ["1"]}', '{"kernel_flop": 8}']
    assert equal_calls_in_python(*calls_of(texts, [1, 1, 1, 1])) == [0, 0, 0, 3]


def random_text(random: Random) -> str:
    """One object as recorders write it: odd strings, nesting and spaces among its values."""
    choices = {
        "Input Dims": [[], [[2, 3], []], [[2, 3], [3, 4]]],
        "Input type": [["float"], ["c10::Half", 'a"]}\\']],
        "Concrete Inputs": [["1", "[2, {]"], []],
        "kernel_flop": [8, 8.5, None],
        "kernel_num_gb": [0.25],
        "External id": [*range(20)],
        'od"d, {key': [{"Input Dims": [1]}, "Input Dims", True],
    }
    keys = random.sample(list(choices), random.randrange(len(choices) + 1))
    values = {key: random.choice(choices[key]) for key in keys}
    spaces = random.choice([(",", ":"), (", ", ": "), (" ,\n", "\t:")])
    return json.dumps(values, separators=spaces, ensure_ascii=random.random() < 0.5)


@pytest.mark.parametrize("seed", range(20))
def test_the_compiled_code_agrees_with_the_decoder(seed: int) -> None:
    random = Random(seed)
    texts = [random_text(random) for _ in range(300)]
    calls = calls_of(texts, [random.randrange(3) for _ in texts])
    found = compiled_equal_calls(*calls)
    assert found is not None
    assert found.tolist() == equal_calls_in_python(*calls)


@pytest.mark.parametrize("keys", [("Input Dims",), ("External id", "Input type"), ("none",)])
def test_any_keys_may_count(keys: tuple[str, ...]) -> None:
    random = Random(1)
    calls = calls_of([random_text(random) for _ in range(300)], [0] * 300)
    found = compiled_equal_calls(*calls, Counted(keys, len(keys)))
    assert found is not None
    assert found.tolist() == equal_calls_in_python(*calls, Counted(keys, len(keys)))
    assert 1 <= len(set(found.tolist())) < 300


@pytest.mark.parametrize("text", [r'{"a\/b": 1}', '{"a/b": 1}', r'{"a\u002fb": 1}'])
def test_a_key_may_be_spelled_in_several_ways(text: str) -> None:
    calls = calls_of(['{"a/b": 2}', text, '{"a/b": 1}'], [0] * 3)
    assert equal_calls_in_python(*calls, Counted(("a/b",), 1)) == [0, 1, 1]


@pytest.mark.parametrize("key", ['od"d', "line\nfeed", "back\\slash"])
def test_keys_that_json_escapes_are_found(key: str) -> None:
    calls = calls_of([json.dumps({key: 1}), json.dumps({key: 2}), json.dumps({key: 1})], [0] * 3)
    assert equal_calls_in_python(*calls, Counted((key,), 1)) == [0, 1, 0]
    assert compiled_equal_calls(*calls, Counted((key,), 1)) is None


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "null",
        "{",
        '{"a"',
        '{"a":',
        '{"a":}',
        '{"a":1',
        '{"a":1,}',
        '{"a":1}x',
        '{"a" 1}',
        '{"a\\u0020": 1}',
        '{"a":"b',
        '{"a":"b\\',
        "{1:2}",
        " ",
    ],
)
def test_text_that_is_no_plain_object_is_left_to_the_decoder(text: str) -> None:
    calls = calls_of(["{}", text], [1, 1])
    assert compiled_equal_calls(*calls) is None
