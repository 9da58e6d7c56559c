"""Commands that run a script: which options are stepscope's, and which are the script's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click


class ScriptCommand(click.Command):
    """A command whose last positional argument is a script, followed by the script's arguments.

    Options of stepscope stand anywhere before the script. After it they are the script's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the command line at the script; put stepscope's options first."""
        ours, positionals, rest = self._split(args)
        if len(positionals) == self._positional_count():
            self.check_arguments(positionals[-1], rest)
        return super().parse_args(ctx, [*ours, "--", *positionals, *rest])

    def check_arguments(self, script: str, arguments: Sequence[str]) -> None:
        """Look at what a script gets; by default it gets anything."""

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """stepscope's options, the positional arguments up to the script, and what follows it."""
        options: list[str] = []
        positionals: list[str] = []
        words = list(args)
        while words and len(positionals) < self._positional_count():
            word = words.pop(0)
            if word == "--":
                count = self._positional_count() - len(positionals)
                return options, [*positionals, *words[:count]], words[count:]
            if not (word.startswith("-") and word != "-"):
                positionals.append(word)
                continue
            options.append(word)
            if words and self._takes_value(word):
                options.append(words.pop(0))
        return options, positionals, words

    def _own_options(self) -> set[str]:
        names = (name for param in self.params for name in (*param.opts, *param.secondary_opts))
        return {name for name in names if name.startswith("-")}

    def _positional_count(self) -> int:
        return sum(isinstance(param, click.Argument) and param.nargs == 1 for param in self.params)

    def _takes_value(self, word: str) -> bool:
        if "=" in word:
            return False
        found = [param for param in self.params if isinstance(param, click.Option) and word in param.opts]
        return bool(found) and not (found[0].is_flag or found[0].count)


class MeasuringCommand(ScriptCommand):
    """A script command that says which of its options a script gets instead."""

    def check_arguments(self, script: str, arguments: Sequence[str]) -> None:
        """Say on stderr which of stepscope's options follow a script that does not mention them."""
        text = _text_of(script) or ""
        for name in dict.fromkeys(word.partition("=")[0] for word in arguments):
            if name in self._own_options() and not _mentions(text, name):
                click.echo(
                    f"! {name} comes after {script}, so the script gets it; "
                    "put stepscope's options before the script",
                    err=True,
                )


def _mentions(text: str, option: str) -> bool:
    """Whether a script has the option's name, as a word or with `_` for `-`."""
    word = option.lstrip("-").replace("-", "[-_]")
    return re.search(rf"\b{word}\b", text) is not None


def _text_of(script: str) -> str | None:
    """The text of a script; None where it cannot be read, which is reported elsewhere."""
    with suppress(OSError, ValueError):
        return Path(script).read_text("utf-8", "replace")
    return None
