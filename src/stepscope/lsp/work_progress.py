"""The progress that an editor shows while a file is measured. Nothing waits for it.

An editor must accept a token before progress is reported under it. Measuring begins at once all
the same, and goes on where the editor refuses or never answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

_NUMBERS = count(1)


class Progress:
    """The progress of one measurement in an editor.

    Args:
        server: whose editor; nothing is sent to one that shows no progress.
        message: what goes on.
        cancel: called when the user stops it.
    """

    def __init__(self, server: LanguageServer, message: str, cancel: Callable[[], object]) -> None:
        self._progress = server.work_done_progress
        self._token = f"stepscope {next(_NUMBERS)}"  # Helix shows it
        self._shown = self._ended = False
        window = server.client_capabilities.window
        if window and window.work_done_progress:
            self._asking = asyncio.create_task(self._begin(message, cancel))

    def report(self, message: str, done: float) -> None:
        """Report the current activity and its progress, 0 to 1."""
        if self._shown:
            value = lsp.WorkDoneProgressReport(message=message, percentage=int(100 * done))
            self._progress.report(self._token, value)

    def end(self, message: str) -> None:
        """The measurement is over, with this result."""
        if self._shown:
            self._progress.end(self._token, lsp.WorkDoneProgressEnd(message=message))
            self._progress.tokens.pop(self._token, None)
        self._shown, self._ended = False, True

    async def _begin(self, message: str, cancel: Callable[[], object]) -> None:
        try:
            await self._progress.create_async(self._token)
        except JsonRpcException:
            return
        if self._ended:
            return
        self._shown = True
        begin = lsp.WorkDoneProgressBegin(
            title="stepscope", message=message, cancellable=True, percentage=0
        )
        self._progress.begin(self._token, begin)
        self._progress.tokens[self._token].add_done_callback(
            lambda token: token.cancelled() and cancel()
        )
