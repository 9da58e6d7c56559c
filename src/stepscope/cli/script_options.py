"""Commands that run a script: which options are stepscope's, and which are the script's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

# What a script uses to read its arguments. One that has none of these takes no arguments.
_READS_ARGUMENTS = re.compile(
    r"\b(argv|argparse|optparse|getopt|click|typer|fire|absl|docopt|tyro|hydra|simple_parsing"
    r"|\w*ArgumentParser|LightningCLI|parse_args|run_path|run_module)\b"
)
_IMPORT = re.compile(r"^\s*(?:import\s+(\w+)|from\s+(\w+))", re.MULTILINE)


class ScriptCommand(click.Command):
    """A command whose last positional argument is a script, followed by the script's arguments.

    Options of stepscope stand anywhere before the script. After it they are the script's.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Split the command line at the script; put stepscope's options first."""
        ours, positionals, rest = self.split(args)
        if len(positionals) == self._positional_count():
            trailing, rest = self.trailing_options(positionals[-1], rest)
            ours += trailing
        return super().parse_args(ctx, [*ours, "--", *positionals, *rest])

    def trailing_options(self, script: str, rest: Sequence[str]) -> tuple[list[str], list[str]]:
        """What of the words after a script is stepscope's (nothing), and what is the script's."""
        return [], list(rest)

    def split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        """stepscope's options, the positional arguments up to the script, and what follows it."""
        options: list[str] = []
        positionals: list[str] = []
        words = list(args)
        while words and len(positionals) < self._positional_count():
            word = words.pop(0)
            if word == "--":
                count = self._positional_count() - len(positionals)
                return options, [*positionals, *words[:count]], words[count:]
            if not _is_option(word):
                positionals.append(word)
                continue
            options.append(word)
            if words and self._takes_value(word):
                options.append(words.pop(0))
        return options, positionals, words

    def own_options(self) -> set[str]:
        """The names of stepscope's options for this command."""
        names = (name for param in self.params for name in (*param.opts, *param.secondary_opts))
        return {name for name in names if name.startswith("-")}

    def _positional_count(self) -> int:
        return sum(isinstance(param, click.Argument) and param.nargs == 1 for param in self.params)

    def _takes_value(self, word: str) -> bool:
        """Whether the value of an option is the next word."""
        if "=" in word:
            return False
        found = [
            param for param in self.params if isinstance(param, click.Option) and word in param.opts
        ]
        return bool(found) and not (found[0].is_flag or found[0].count)


class MeasuringCommand(ScriptCommand):
    """A script command whose options may also follow a script that reads no arguments."""

    def trailing_options(self, script: str, rest: Sequence[str]) -> tuple[list[str], list[str]]:
        """What of the words after a script is stepscope's, and what is the script's."""
        options, positionals, left = self.split(rest)
        names = {word.partition("=")[0] for word in options if _is_option(word)}
        if not names:
            return [], list(rest)
        if names <= self.own_options() and not positionals and _reads_no_arguments(script):
            return options, left
        self._warn_of_options(script, rest)
        return [], list(rest)

    def _warn_of_options(self, script: str, arguments: Sequence[str]) -> None:
        """Say on stderr which of stepscope's options follow a script that does not mention them."""
        text = _text_of(script) or ""
        for name in dict.fromkeys(word.partition("=")[0] for word in arguments):
            if name in self.own_options() and not _mentions(text, name):
                click.echo(
                    f"! {name} comes after {script}, so the script gets it; "
                    "put stepscope's options before the script", err=True,
                )  # fmt: skip


def _is_option(word: str) -> bool:
    return word.startswith("-") and word != "-"


def _reads_no_arguments(script: str) -> bool:
    """Whether neither a script nor a module next to it can read its command line."""
    text = _text_of(script)
    if text is None or _READS_ARGUMENTS.search(text):
        return False
    folder = Path(script).absolute().parent
    imported = {first or second for first, second in _IMPORT.findall(text)}
    local = {path.stem for path in folder.iterdir() if path.is_dir() or path.suffix == ".py"}
    return imported.isdisjoint(local)


def _mentions(text: str, option: str) -> bool:
    """Whether a script has the option's name, as a word or with `_` for `-`."""
    word = option.lstrip("-").replace("-", "[-_]")
    return re.search(rf"\b{word}\b", text) is not None


def _text_of(script: str) -> str | None:
    """The text of a script; None where it cannot be read, which is reported elsewhere."""
    with suppress(OSError, ValueError):
        return Path(script).read_text("utf-8", "replace")
    return None
