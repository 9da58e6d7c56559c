"""A progress bar for whatever takes over a second, on stderr, so that data on stdout stay clean."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

Clock = Callable[[], float]
_PATIENCE_S = 1.0


@contextmanager
def progress_bar(title: str, clock: Clock = time.monotonic) -> Iterator[Callable[[int, int], None]]:
    """A function to call with the bytes done so far and the total.

    Args:
        title: what is going on.
        clock: seconds.

    Yields:
        The function; it shows a bar once a second has passed, and none where stderr is no terminal.
    """
    begin = clock()
    with ExitStack() as stack:
        bar: Any = None

        def tell(done: int, total: int) -> None:
            nonlocal bar
            if bar is None and clock() - begin > _PATIENCE_S and sys.stderr.isatty():
                bar = stack.enter_context(_bar())
                bar.add_task(title)
            if bar is not None:
                bar.update(bar.task_ids[0], completed=done, total=total)

        yield tell


@contextmanager
def step_progress() -> Iterator[Callable[[str, int, int], None]]:
    """A function to call with the current activity, the amount done and the total.

    Yields:
        The function; it shows a bar at once, and one line for each thing where stderr is no
        terminal.
    """
    with ExitStack() as stack:
        bar: Any = None

        def tell(words: str, done: int, total: int) -> None:
            nonlocal bar
            if not sys.stderr.isatty():
                print(f"{words} ({done + 1} of {total})", file=sys.stderr, flush=True)
                return
            if bar is None:
                bar = stack.enter_context(_bar())
                bar.add_task(words)
            bar.update(bar.task_ids[0], description=words, completed=done, total=total)

        yield tell


def _bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)
