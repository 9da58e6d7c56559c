"""Generates `docs/reference/changes.md` from the declarations of the changes."""

import inspect
import re
from itertools import groupby

from stepscope.models.whatif import CHANGES, Change
from stepscope.models.whatif.change import Parameter

_HEAD = """\
# What-if changes

This page is generated: change a file in `src/stepscope/models/whatif` and run \
`python scripts/changes_docs.py > docs/reference/changes.md`.

`stepscope whatif FILE CHANGE[:KEY=VALUE,…]` predicts these changes \
([guide](../guide/whatif.md)), and `stepscope verify CHANGE SCRIPT` applies some of them \
([guide](../guide/verify.md)).
"""


def page() -> str:
    """The whole page as Markdown."""
    groups = groupby(CHANGES.values(), key=lambda change: change.group)
    return "\n".join([_HEAD, *(_group(name, list(changes)) for name, changes in groups)])


def _group(name: str, changes: list[Change]) -> str:
    return "\n".join([f"## {name}\n", *map(_section, changes)])


def _section(change: Change) -> str:
    lines = [f"### {change.name}\n", f"{_description(change)}\n"]
    if change.basis:
        basis_on_cpu = change.on_cpu.basis if change.on_cpu else ""
        on_cpu = f" On a CPU: {basis_on_cpu}." if basis_on_cpu else ""
        lines.append(f"- **Based on** {change.basis}.{on_cpu}")
    if change.error:
        lines.append(_error(change))
    if change.application:
        lines.append(f"- **`verify`**: {change.application.summary}.")
    lines += [f"- **Assumes**: {text}." for text in change.assumptions]
    return "\n".join([*lines, "", *_parameters(list(change.parameters.values()))])


def _description(change: Change) -> str:
    """The docstring up to its sections, as one paragraph."""
    text = re.split(r"\n\n(?:Args|Raises|Source|Returns):", inspect.getdoc(change.function) or "")[0]
    return " ".join(text.split())


def _error(change: Change) -> str:
    if not change.error_source:
        return f"- **Measured error** up to {change.error:.0%} ([accuracy](../evidence/accuracy.md))."
    return f"- **Published error** up to {change.error:.0%} ({change.error_source})."


def _parameters(parameters: list[Parameter]) -> list[str]:
    if not parameters:
        return []
    rows = [
        f"| `{parameter.name}` | {_default(parameter)} | {_cell(parameter.meaning)} |"
        for parameter in parameters
    ]
    return ["| parameter | default | meaning |", "|---|---|---|", *rows, ""]


def _default(parameter: Parameter) -> str:
    if parameter.default is None:
        return "required"
    text = str(parameter.default)
    return f"`{_cell(text)}`" if text else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
