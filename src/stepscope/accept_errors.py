"""What a server on asyncio says where it cannot accept connections.

asyncio tries again every second, which is right, and logs a traceback each time, which fills disks.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from typing import Any

from stepscope.errors import has_no_descriptors

_SHORTAGES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_CALM_S = 60.0  # without a shortage, until the next is worth a line


class AcceptErrors:
    """An exception handler for event loops: a shortage of descriptors or memory is one line.

    Another line follows only after a minute without a shortage; other errors go to the loop's own
    handler.

    Args:
        say: shows a line to the user.

    Example:
        >>> loop = asyncio.new_event_loop()
        >>> loop.set_exception_handler(AcceptErrors(print))
        >>> loop.close()
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._last_s = -_CALM_S

    def __call__(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not (isinstance(error, OSError) and error.errno in _SHORTAGES and "socket" in context):
            loop.default_exception_handler(context)
            return
        now = loop.time()
        if now - self._last_s >= _CALM_S:
            self._say(shortage(error))
        self._last_s = now


def shortage(error: OSError) -> str:
    """What is short, and what to do, in one line."""
    reason = (error.strerror or str(error)).lower()
    advice = "; raise the limit with `ulimit -n`" if has_no_descriptors(error) else ""
    return f"{reason}: new connections wait until others are closed{advice}"
