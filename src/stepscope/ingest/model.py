"""Model trees: `modules.json` of a capture, and the file given with `--model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct, field

from stepscope.errors import IngestError
from stepscope.ingest.json_text import parse_json


class Module(Struct):
    """One module as it must be written; other keys may stand beside these."""

    name: str
    class_: str = field(name="class")
    path: str | None = None
    file: str | None = None
    line: int | None = None
    call_file: str | None = None
    call_line: int | None = None
    parameters: int | None = None
    parameter_bytes: int | None = None
    children: list[Module] = []


class Forest(Struct):
    """The form of modules.json."""

    roots: list[Module]


def read_model(path: Path) -> dict[str, Any]:
    """Read the model tree that `--model` names.

    Args:
        path: a JSON file, `{"name": …, "class": …, "children": […]}` or `{"roots": […]}`.

    Returns:
        What the file holds, with its shape checked.

    Raises:
        IngestError: if it cannot be read or has another shape.
    """
    try:
        return parse_model(path.read_bytes())
    except OSError as error:
        raise IngestError(
            f"{path}: expected a model tree (--model), but it cannot be read: {error.strerror}"
        ) from error
    except IngestError as error:
        raise IngestError(f"{path}: {error}") from error


def parse_model(text: bytes) -> dict[str, Any]:
    """A model tree from JSON text; raises IngestError where its shape is another."""
    try:
        tree = parse_json(text.decode(json.detect_encoding(text)))
        if isinstance(tree, dict):
            msgspec.convert(tree, Forest if "roots" in tree else Module)
            return tree
        found = f"a JSON {type(tree).__name__}"
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        found = str(error)
    raise IngestError(
        'expected a model tree {"name": …, "class": …, "children": […]}'
        f' or {{"roots": […]}}, found: {found}'
    )
