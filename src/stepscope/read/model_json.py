"""Model trees: `modules.json` of a capture, and the file given with `--model`."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from mmap import mmap
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from stepscope.base.input_files import content_of, open_input
from stepscope.base.typed_data import convert
from stepscope.errors import IngestError
from stepscope.read.shared import parse_json
from stepscope.read.xplane.protobuf import BYTES, Damage, Span, fields
from stepscope.trace.spill import copy_of


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
    children: "list[ModuleJson]" = []


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
            return read_onnx(path)
        return parse_model(content_of(path))
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


# -- the model tree of an ONNX file, from the scopes that exporters write at its nodes
# PyTorch's exporter since 2.6 writes the path and the class of each module (`pkg.torch.onnx.*`); the
# one before names a node after the modules around it, `/layers.0/fc1/MatMul`. Weights are passed over.
#
# Source: onnx.proto (https://github.com/onnx/onnx), messages ModelProto, GraphProto and NodeProto.

_GRAPH, _NODE, _NAME, _OPERATOR, _PROPERTIES = 7, 1, 3, 4, 9  # numbers of fields
_KEY, _VALUE = 1, 2
_PATHS, _CLASSES = "pkg.torch.onnx.name_scopes", "pkg.torch.onnx.class_hierarchy"
_QUOTED = re.compile(r"'([^']*)'")
_MOST_FIELDS = 2_000_000  # of a file: 2 µs each, measured; a model of 50,000 nodes has a million
_DEEPEST = 100  # modules inside each other; readers of the tree recurse
_MOST_MODULES, _LONGEST_PATH = 200_000, 1_000  # letters; chosen: all of them take 300 MB
# The class of a module, where only the operator that it runs is written.
_LAYERS = {
    "Conv": "Conv2d",
    "ConvTranspose": "ConvTranspose2d",
    "Gemm": "Linear",
    "MatMul": "Linear",
    "BatchNormalization": "BatchNorm2d",
    "InstanceNormalization": "InstanceNorm2d",
    "LayerNormalization": "LayerNorm",
    "GroupNormalization": "GroupNorm",
    "Gather": "Embedding",
    "MaxPool": "MaxPool2d",
    "AveragePool": "AvgPool2d",
    "GlobalAveragePool": "AdaptiveAvgPool2d",
    "Relu": "ReLU",
    "Gelu": "GELU",
    "Erf": "GELU",
}
_CONTAINER = "ModuleList"
_Scope = tuple[str, str]  # a module's path and its class, empty if it is not written


def read_onnx(path: Path) -> dict[str, Any]:
    """The model tree of an ONNX file; raises IngestError if no node names its module, or OSError."""
    with open_input(path) as file:
        return model_tree(copy_of(file))


def model_tree(data: bytes | mmap) -> dict[str, Any]:
    """The tree of the modules that a model's nodes name, in the order of their first node."""
    modules = {"": _module("model", "")}
    layers: dict[str, str] = {}  # class by the first operator that tells it
    inner = partial(_inner, data, count(1))
    for _, graph in inner(Span(0, len(data)), _GRAPH):
        for _, node in inner(graph, _NODE):
            scopes, operator = _read_node(data, inner, node)
            for path, kind in scopes:
                _add(modules, path)["class"] = kind
            if scopes and (layer := _LAYERS.get(operator)):
                layers.setdefault(scopes[-1][0], layer)
    for path, layer in layers.items():
        if not modules[path]["class"] and not modules[path]["children"]:
            modules[path]["class"] = layer
    if len(modules) == 1:
        raise IngestError("no node of the ONNX file names its module; export it with PyTorch")
    return modules[""]


def _add(modules: dict[str, dict[str, Any]], path: str) -> dict[str, Any]:
    """The module at a path; those around it that run nothing themselves are containers."""
    if path not in modules:
        above, _, name = path.rpartition(".")
        if path.count(".") > _DEEPEST:
            raise IngestError(f"a module of the ONNX file is more than {_DEEPEST} levels deep")
        if len(modules) > _MOST_MODULES or len(path) > _LONGEST_PATH:
            raise IngestError(f"the ONNX file has over {_MOST_MODULES:,} modules, or one of a huge name")
        modules[path] = _module(name, _CONTAINER)
        _add(modules, above)["children"].append(modules[path])
    return modules[path]


def _module(name: str, kind: str) -> dict[str, Any]:
    return {"name": name, "class": kind, "children": []}


def _read_node(data: bytes | mmap, inner: Callable[..., Any], node: Span) -> tuple[list[_Scope], str]:
    """The modules around a node, outermost first, by what PyTorch's exporters write, and its operator."""
    texts, written = {_NAME: "", _OPERATOR: ""}, {_PATHS: "", _CLASSES: ""}
    for number, part in inner(node, _NAME, _OPERATOR, _PROPERTIES):
        if number != _PROPERTIES:
            texts[number] = _text(data, part)
            continue
        pair = dict(inner(part, _KEY, _VALUE))
        if _VALUE in pair and (key := _text(data, pair.get(_KEY, part))) in written:
            written[key] = _text(data, pair[_VALUE])
    paths, classes = map(_QUOTED.findall, written.values())
    scopes = [*zip(paths[:-1], classes[:-1], strict=False)]  # the last is the node itself
    return scopes or [*_named(texts[_NAME])], texts[_OPERATOR]


def _named(name: str) -> Iterator[_Scope]:
    """The modules around a node by its name; those of a Sequential repeat what is above them."""
    above, path, before = "", "", ""
    for part in name.split("/", 2 * _DEEPEST)[1:-1]:
        if not (before and part.startswith(f"{before}.")):
            above = path
        path, before = f"{above}.{part}".lstrip("."), part
        yield path, ""


def _inner(data: bytes | mmap, read: Iterator[int], span: Span, *numbers: int) -> Iterator[tuple[int, Span]]:
    for item in fields(data, span, Damage()):
        if next(read) > _MOST_FIELDS:
            raise IngestError(f"the ONNX file has over {_MOST_FIELDS:,} fields; export a smaller model")
        if item.number in numbers and item.kind == BYTES:
            yield item.number, Span(item.value, item.end)


def _text(data: bytes | mmap, span: Span) -> str:
    most = 2 * _DEEPEST * _LONGEST_PATH  # bytes, which hold the paths of all modules around a node
    return data[span.start : min(span.end, span.start + most)].decode("utf-8", "replace")
