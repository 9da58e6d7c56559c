"""Options of a project: `[COMMAND]` in `stepscope.toml`, `[tool.stepscope.COMMAND]` in `pyproject.toml`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from stepscope.errors import StepscopeError, one_line

_FILES = ("stepscope.toml", "pyproject.toml")  # the first one counts
# Who clones a project has not read it: such a file starts nothing, names no file and changes none.
_COMMANDS = ("run", "report", "analyze", "contexts", "diff", "ranks", "memory")
_VALUES = (bool, int, float)


def project_options(command: click.Command, folder: Path) -> dict[str, Any]:
    """Defaults of a command's switches and numbers, from the nearest file in this folder or around it.

    Raises:
        StepscopeError: the file is not TOML, or has an option that the command does not have or that
            only its user may set.
    """
    if command.name not in _COMMANDS:
        return {}
    for path in (around / name for around in (folder, *folder.parents) for name in _FILES):
        if path.is_file() and (options := _section(path, command.name or "")) is not None:
            return _checked(options, command, path)
    return {}


def _section(path: Path, command: str) -> dict[str, Any] | None:
    """The options of a command; None if the file says nothing of stepscope."""
    text = path.read_text("utf-8", errors="replace")
    if path.name == "pyproject.toml" and "tool.stepscope" not in text:
        return None
    try:
        import tomllib

        content: dict[str, Any] = tomllib.loads(text)
    except ImportError:
        raise StepscopeError(f"{path}: options of a project need Python 3.11") from None
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"{path} is not TOML: {one_line(error)}") from None
    keys = [command] if path.name == "stepscope.toml" else ["tool", "stepscope", command]
    for key in keys:
        content = content.get(key, {})
        if not isinstance(content, dict):
            return {}
    return content


def _checked(options: dict[str, Any], command: click.Command, path: Path) -> dict[str, Any]:
    """The options by the names of their parameters."""
    names = {
        word.lstrip("-"): parameter.name
        for parameter in command.params
        if isinstance(parameter, click.Option)
        for word in parameter.opts
    }
    for word, value in options.items():
        if word not in names:
            raise StepscopeError(f"{path}: stepscope {command.name} has no option --{word}")
        if not isinstance(value, _VALUES):
            raise StepscopeError(
                f"{path}: --{word} can be set on the command line only; here, switches and numbers"
            )
    return {str(names[word]): value for word, value in options.items()}
