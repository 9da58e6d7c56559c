from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.errors import IngestError
from stepscope.read.model_json import parse_model, read_model

TREE = {"name": "net", "class": "Net", "children": [{"name": "fc", "class": "Linear"}]}


@pytest.mark.parametrize("tree", [TREE, {"roots": [TREE]}, {**TREE, "more": 1}])
def test_both_forms_are_taken_as_written(tree: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "model.json"
    path.write_text(json.dumps(tree))
    assert read_model(path) == tree


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"name": "net"}', "missing required field `class`"),
        ('{"name": "net", "class": 3}', r"Expected `str`, got `int` - at `\$.class`"),
        ('{"name": "n", "class": "N", "children": {}}', "Expected `array`, got `object`"),
        ("[]", "found: a JSON list"),
        ("{", "found: Expecting property name"),
        ("", "found: Expecting value"),
        ('{"roots": 1}', "Expected `array`"),
        ('{"name":"n","class":"N","children":[' * 50_000, "nested more than 150 levels deep"),
    ],
)
def test_another_shape_is_told(text: str, message: str) -> None:
    with pytest.raises(IngestError, match=message) as raised:
        parse_model(text.encode())
    assert 'expected a model tree {"name": …, "class": …, "children": […]}' in str(raised.value)


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(IngestError, match=r"model\.json: cannot read the model tree"):
        read_model(tmp_path / "model.json")


def test_half_a_letter_is_replaced_as_nothing_could_store_it() -> None:
    text = b'{"name": "a\\ud800b", "class": "Net\\ud83d\\ude00"}'
    assert parse_model(text) == {"name": "a?b", "class": "Net😀"}


def test_another_encoding_is_told_by_its_first_bytes() -> None:
    assert parse_model(json.dumps(TREE).encode("utf-16")) == TREE


@pytest.mark.parametrize("key", ["line", "call_line", "parameters", "parameter_bytes"])
def test_a_number_that_no_column_holds_is_refused(key: str) -> None:
    for number in (2**62, 2**70, -(2**40)):
        with pytest.raises(IngestError, match=f"Expected `int` .* at `\\$.{key}`"):
            parse_model(json.dumps({"name": "m", "class": "C", key: number}).encode())
