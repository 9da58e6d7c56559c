"""Shorten kernel names for display."""

from __future__ import annotations

import re

from stepscope.base.mangled_names import readable

_NAMESPACES = (
    r"at|native|c10|std|cuda|detail|internal|cutlass|cutlass_cudnn\w*|cub|thrust|ck|ck_tile"
    "|tensor_operation|device|kernel"
)
_OPERATOR = re.compile(r"^\w+::\w+$")
_NOISE = re.compile(rf"\(anonymous namespace\)::|\b({_NAMESPACES})::|^void ")


def short_kernel(name: str, width: int = 60) -> str:
    """Shorten a kernel's name: no return type, namespaces, parameters or nested template arguments.

    A name that is still too long loses its end; an operator's name loses its middle, because its
    end distinguishes backward operators.

    Example:
        >>> short_kernel("void at::native::reduce_kernel<512, at::native::ReduceOp<float>>(float)")
        'reduce_kernel<512, ReduceOp<>>'
    """
    text = _NOISE.sub("", without_parameters(readable(name)))
    text = _shallow(text)
    if len(text) <= width:
        return text
    kept = width // 3 if _OPERATOR.match(text) else 0
    return f"{text[: width - 1 - kept]}…{text[len(text) - kept :]}"


def _shallow(text: str) -> str:
    """Drop template arguments nested in template arguments."""
    out: list[str] = []
    depth = 0
    for char in text:
        depth -= char == ">"
        if depth < 2:
            out.append(char)
        depth += char == "<"
    return "".join(out)


def without_parameters(name: str) -> str:
    """A C++ name without its trailing parameter list.

    Example:
        >>> without_parameters("void fill<(anonymous namespace)::F>(float*, int)")
        'void fill<(anonymous namespace)::F>'
    """
    depth = 0
    for index in range(len(name) - 1, 0, -1) if name.endswith(")") else ():
        depth += (name[index] == ")") - (name[index] == "(")
        if depth == 0:
            return name[:index] if name[index - 1] not in " :" else name
    return name
