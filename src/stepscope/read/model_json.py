"""Model trees: `modules.json` of a capture, and the file given with `--model`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from stepscope.base.typed_data import convert
from stepscope.errors import IngestError
from stepscope.read.shared import parse_json


class ModuleJson(Struct):
    """The form of one module; other keys are allowed."""

    name: str
    class_: str = field(name="class")
    path: str | None = None
    file: str | None = None
    line: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    call_file: str | None = None
    call_line: Annotated[int, Meta(ge=-1, lt=2**31)] | None = None
    parameters: Annotated[int, Meta(ge=-1, lt=2**62)] | None = None
    parameter_bytes: Annotated[int, Meta(ge=-1, lt=2**62)] | None = None
    children: list[ModuleJson] = []


class ModuleRoots(Struct):
    """The form of modules.json."""

    roots: list[ModuleJson]


def read_model(path: Path) -> dict[str, Any]:
    """The model tree that `--model` names, `{"name": …, "class": …, "children": […]}` or `{"roots": […]}`.

    Of an ONNX file it is the tree of the modules that its nodes name.

    Raises IngestError if the file cannot be read or has another shape.
    """
    try:
        if path.suffix == ".onnx":
            from stepscope.read.onnx_model import read_onnx

            return read_onnx(path)
        return parse_model(path.read_bytes())
    except OSError as error:
        raise IngestError(f"{path}: cannot read the model tree (--model): {error.strerror}") from error
    except IngestError as error:
        raise IngestError(f"{path}: {error}") from error


def parse_model(text: bytes) -> dict[str, Any]:
    """Parse a model tree from JSON text; raises IngestError if it has another shape."""
    try:
        tree = parse_json(text.decode(json.detect_encoding(text)))
        if isinstance(tree, dict):
            convert(tree, ModuleRoots if "roots" in tree else ModuleJson)
            return tree
        problem = f"a JSON {type(tree).__name__}"
    except ValueError as error:
        problem = str(error)
    raise IngestError(
        'expected a model tree {"name": …, "class": …, "children": […]}'
        f' or {{"roots": […]}}, found: {problem}'
    )
