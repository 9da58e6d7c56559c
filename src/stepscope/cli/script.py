"""Commands that run a script: whose the options are that stand behind it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click


def tell_of_options_behind(script: str, arguments: Sequence[str]) -> None:
    """Say on stderr which of the command's own options stand behind the script, and so are its.

    Those that the script itself speaks of are taken to be meant for it.

    Args:
        script: its path.
        arguments: what stands behind it on the command line.
    """
    text = _text_of(script)
    for name in dict.fromkeys(word.partition("=")[0] for word in arguments):
        if name in _options() and not _speaks_of(text, name):
            click.echo(
                f"! {name} stands behind {script}, so it goes to the script; options of stepscope "
                "stand before it", err=True,
            )  # fmt: skip


def _options() -> set[str]:
    """The options of the command that is called."""
    parameters = click.get_current_context().command.params
    names = (name for one in parameters for name in (*one.opts, *one.secondary_opts))
    return {name for name in names if name.startswith("-")}


def _speaks_of(text: str, option: str) -> bool:
    """Whether a text has the option's name, as a word or with `_` for `-`."""
    word = option.lstrip("-").replace("-", "[-_]")
    return re.search(rf"\b{word}\b", text) is not None


def _text_of(script: str) -> str:
    """What a script says; nothing where it cannot be read, which is told elsewhere."""
    with suppress(OSError):
        return Path(script).read_text("utf-8", "replace")
    return ""
