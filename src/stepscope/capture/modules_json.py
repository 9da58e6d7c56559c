"""modules.json: the description of the model trees."""

from __future__ import annotations

import functools
import linecache
import re
import sys
from pathlib import Path
from typing import Any

from stepscope.capture.model_tree import Node, is_scripted
from stepscope.capture.module_registry import ModuleRegistry

Json = dict[str, Any]


def describe_registry(registry: ModuleRegistry) -> Json:
    """The content of modules.json for the trees of `registry`."""
    return {"roots": [_describe(root)[0] for root in registry.roots]}


def _describe(node: Node) -> tuple[Json, dict[int, Any]]:
    """A node as JSON, and the distinct parameters in its subtree."""
    parameters = {id(p): p for p in node.module._parameters.values() if p is not None}
    children = []
    for child in node.children:
        described, below = _describe(child)
        children.append(described)
        parameters.update(below)
    scripted = is_scripted(node.module)
    cls: type = type(node.module)
    file, line = (None, None) if scripted else class_site(cls)
    call_file, call_line = node.site or (None, None)
    return {
        "name": node.name,
        "path": node.path,
        "class": node.module.original_name if scripted else class_name(cls),
        **({"scripted": True} if scripted else {}),
        "file": file,
        "line": line,
        "call_file": call_file,
        "call_line": call_line,
        "parameters": sum(_count(p) for p in parameters.values()),
        "parameter_bytes": sum(_count(p) * p.element_size() for p in parameters.values()),
        "children": children,
    }, parameters


def _count(parameter: Any) -> int:
    """Elements of a parameter; 0 while a lazy module has not seen its first input."""
    try:
        return int(parameter.numel())
    except (RuntimeError, ValueError):
        return 0


def class_name(cls: type) -> str:
    """A class with its module; a class that a function made is called what the function calls it.

    Example:
        >>> class_name(int)
        'builtins.int'
    """
    full = cls.__qualname__
    own = full if full.rpartition(".")[2] == cls.__name__ else cls.__name__
    return f"{cls.__module__}.{own}"


@functools.cache
def class_site(cls: type) -> tuple[str | None, int | None]:
    """File and line of a class definition, None where it has none.

    `inspect.getsourcelines` parses the whole file, which for a large model file takes longer than
    a training step.
    """
    file = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if file is None:
        return None, None
    definition = re.compile(rf"\s*class\s+{re.escape(cls.__name__)}\b")
    lines = linecache.getlines(file)
    found = (number for number, text in enumerate(lines, 1) if definition.match(text))
    return str(Path(file).absolute()), next(found, None)
