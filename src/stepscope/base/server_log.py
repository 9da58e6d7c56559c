"""What a server logs: no client, and no shortage of descriptors, can fill the log."""

import logging
import re
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

_MOST_KINDS = 100  # that are counted apart: a client that varies its messages cannot take more memory
_OTHERS = "", "errors of further kinds", ""


class RepeatedErrors(logging.Handler):
    """Says the first warning or error of a kind in full, and the 10th, 100th, … in one line.

    Of one kind are messages of one logger that differ in numbers only, with the same type of
    exception. After 100 kinds, all others are one kind.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._say = say
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        """Count a message, and show it if it is the first or a tenfold of its kind."""
        error, line = record.exc_info and record.exc_info[1], _first_line(record)
        kind = record.name, re.sub(r"0x[0-9a-f]+|\d+", "#", line)[:200], type(error).__name__
        if kind not in self._counts and len(self._counts) >= _MOST_KINDS:
            kind, error, line = _OTHERS, None, _OTHERS[1]
        self._counts[kind] += 1
        count = self._counts[kind]
        if str(count).strip("0") != "1":  # no power of ten
            return
        detail = f" ({type(error).__name__}: {error})".partition("\n")[0] if error else ""
        with suppress(OSError):  # where nobody reads the log, the server goes on
            self._say(self._whole(record) if count == 1 else f"{count:,} times so far: {line}{detail}")

    def _whole(self, record: logging.LogRecord) -> str:
        with suppress(TypeError, ValueError):  # arguments that do not fit the message
            return self.format(record)
        return _first_line(record)


def limit_log(command: str) -> None:
    """Let all loggers of this process write to stderr through a `RepeatedErrors` alone, after the command."""
    prefix = f"stepscope {command}:"
    own = RepeatedErrors(lambda line: print(prefix, line, file=sys.stderr, flush=True))
    logging.getLogger().handlers[:] = [own]


def _first_line(record: logging.LogRecord) -> str:
    with suppress(TypeError, ValueError):
        return record.getMessage().partition("\n")[0]
    return str(record.msg).partition("\n")[0]
