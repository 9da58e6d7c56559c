"""Where a command's output goes: terminal, progress bar, files, JSON."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.base.numbers import printable as printable
from stepscope.base.unfinished_files import unfinished_file
from stepscope.errors import ServeError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.segment import Segment


FILE_WIDTH = 120  # columns
_NARROWEST, _WIDEST, _LINES = 20, 4000, 25  # chosen: names are shorter; nothing depends on the lines
SIMILAR = "stepscope-similar"  # names the handler of errors of an output's encoding
# One character for one, so that tables keep their columns.
_SIMILAR = dict(zip("…›◀↩▶▼·µ×–—→←━─│•█▉▊▋▌▍▎▏", "~><^>v.ux--><--|*#####:::", strict=True))
Clock = Callable[[], float]
_PATIENCE_S = 1.0  # before a bar appears
_NOT_ASCII = re.compile(r"[^\x00-\x7f]+")


def terminal() -> Console:
    """A console as wide as the terminal; in a pipe or a file 120 columns, or `$COLUMNS`.

    It leaves control characters out: a name in a file must not steer the terminal.
    """
    from rich.console import Console

    class Printable(Console):
        def render(self, *args: Any, **kwargs: Any) -> Iterator[Segment]:
            for segment in super().render(*args, **kwargs):
                yield segment if segment.control else segment._replace(text=printable(segment.text))

    # Names are no markup, and have no emoji to be replaced.
    return Printable(**_size(sys.stdout), markup=False, emoji=False)


def _size(stream: Any) -> dict[str, Any]:
    """The size of a terminal, which Rich would take from the environment whatever that holds."""
    columns = 0
    with suppress(KeyError, ValueError):
        columns = max(int(os.environ["COLUMNS"]), 0)
    with suppress(OSError, ValueError):  # it is no terminal
        columns = columns or os.get_terminal_size(stream.fileno()).columns
    return {"width": min(max(columns or FILE_WIDTH, _NARROWEST), _WIDEST), "height": _LINES}


def say(text: str) -> None:
    """Print a note on stderr: one line, whatever the names in it hold."""
    click.echo(printable(text).replace("\n", " "), err=True)


def _similar(error: UnicodeError) -> tuple[str, int]:
    """What an encoding lacks: symbols of tables as similar ones, other characters as `?`."""
    assert isinstance(error, UnicodeEncodeError)
    text = error.object[error.start : error.end]
    return "".join(_SIMILAR.get(character, "?") for character in text), error.end


codecs.register_error(SIMILAR, _similar)


@contextmanager
def progress_bar(title: str, clock: Clock = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the bytes done so far and the total, which shows a bar once a second has
    passed; none where stderr is no terminal."""
    begin = clock()
    with _bar() as show:

        def tell(done: int, total: int) -> None:
            if clock() - begin > _PATIENCE_S and sys.stderr.isatty():
                show(title, done, total)

        yield tell


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with the current activity, the amount done and the total, which shows a bar at
    once; one line for each thing where stderr is no terminal."""
    with _bar() as show:

        def tell(words: str, done: int, total: int) -> None:
            if sys.stderr.isatty():
                show(words, done, total)
            else:
                print(f"{words} ({done + 1} of {total})", file=sys.stderr, flush=True)

        yield tell


@contextmanager
def _bar() -> Iterator[Callable[[str, int, int], None]]:
    """A function that shows a bar on stderr, from its first call on."""
    with ExitStack() as stack:

        @cache
        def started() -> Any:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
            console = Console(stderr=True, **_size(sys.stderr))
            bar = stack.enter_context(Progress(*columns, console=console, transient=True))
            bar.add_task("")
            return bar

        yield lambda words, done, total: started().update(
            started().task_ids[0], description=words, completed=done, total=total
        )


def write_text(out: Path, text: str) -> None:
    """Write all of it or nothing, as `write_bytes` does; a file's name in it is any bytes."""
    write_bytes(out, text.encode("utf-8", "backslashreplace"))


def write_bytes(out: Path, data: bytes) -> None:
    """Write all of it or nothing; to the end of a link, and straight to what is no file (a pipe)."""
    out = Path(os.path.realpath(out))
    try:
        if out.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        if out.exists() and not out.is_file():
            out.write_bytes(data)
        else:
            with unfinished_file(out) as name:
                name.write_bytes(data)
                name.replace(out)
    except OSError as error:
        raise ServeError(f"{out}: cannot be written: {error.strerror}") from error


def echo_json(facts: Any) -> None:
    click.echo(json_text(facts, 1))


def json_text(facts: Any, indent: int) -> str:
    """Facts as JSON that every reader takes: ASCII, and a number that is not finite is null.

    Example:
        >>> json_text({"speedup": float("inf"), "steps": [1, 2]}, 0)
        '{"speedup": null, "steps": [1, 2]}'
    """
    from stepscope.base.json_text import json_bytes

    text = json_bytes(facts, indent=indent).decode()
    return _NOT_ASCII.sub(lambda found: json.dumps(found[0])[1:-1], text)


def show_answer(facts: Any, lines: Iterable[str], as_json: bool) -> None:
    """Print an answer: its facts as JSON, or the lines of a text."""
    if as_json:
        echo_json(facts)
    else:
        click.echo("\n".join(lines))
