"""For the Python reference (mkdocs.yml): what follows `Example:` in a docstring is code."""

from __future__ import annotations

import re
import textwrap
from typing import Any

import griffe

_EXAMPLE = re.compile(r"^( *)Example:\n((?:\1 +.*\n|\n)+)", re.MULTILINE)


def as_code(docstring: str) -> str:
    """A docstring whose examples are code to mkdocstrings, to which `Example:` is a note of text."""

    def code(match: re.Match[str]) -> str:
        text = re.sub(r" *# doctest: .*", "", textwrap.dedent(match[2]).strip())
        language = "pycon" if text.startswith(">>>") else "python"
        return f"{match[1]}Examples:\n" + textwrap.indent(
            f"```{language}\n{text}\n```\n\n", f"{match[1]}    "
        )

    return _EXAMPLE.sub(code, f"{docstring}\n")


class Examples(griffe.Extension):
    """Changes each docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **rest: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_code(obj.docstring.value)
