"""A Python process that has imported PyTorch already and waits for its one job.

Importing PyTorch takes longer than measuring a small model, so a process is started ahead. Each
does one job and ends: nothing of one measurement is left for the next, and what runs can be killed
with all that it started.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

_LINE_LIMIT = 1 << 28  # a result is one line
_DUMP_S = 2.0  # for a process that hangs to say where
_STDERR_KEPT = 1 << 16

WORKER = (sys.executable, "-m", "stepscope.serve.language.worker")


class Worker:
    """One process with one job.

    Attributes:
        errors: the end of what it wrote to its standard error.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._errors = bytearray()
        self._listening = asyncio.create_task(self._listen())

    @property
    def errors(self) -> str:
        """The end of what the process wrote to its standard error."""
        return self._errors.decode("utf-8", "replace")

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.returncode is None

    async def messages(self, job: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Give it its job; what it says until it ends."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(job).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            await stdin.drain()
        while line := await stdout.readline():
            yield json.loads(line)

    async def ended(self) -> int:
        """Wait for its end; the exit status, negative for a signal."""
        status = await self._process.wait()
        await self._listening
        return status

    async def dump(self) -> str:
        """Where it is in Python, as it hangs: what `faulthandler` says of all its threads."""
        before = len(self._errors)
        if self.alive:
            self._process.send_signal(signal.SIGUSR1)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._listening), _DUMP_S)
        return self._errors[before:].decode("utf-8", "replace")

    async def kill(self) -> None:
        """End it and whatever it started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
        self._listening.cancel()

    async def _listen(self) -> None:
        assert self._process.stderr is not None
        while data := await self._process.stderr.read(1 << 14):
            self._errors += data
            del self._errors[:-_STDERR_KEPT]


class Spare:
    """Keeps one worker ready.

    Args:
        command: starts a worker.
        cwd: where it runs.
    """

    def __init__(self, command: Sequence[str] = WORKER, cwd: str | None = None) -> None:
        self._command = command
        self._cwd = cwd
        self._next: asyncio.Task[Worker] | None = None

    def prepare(self) -> None:
        """Start a worker unless one is ready."""
        if self._next is None:
            self._next = asyncio.create_task(self._start())

    async def take(self) -> Worker:
        """A worker, and the next one is started."""
        worker = await (self._next or asyncio.create_task(self._start()))
        self._next = None
        return worker if worker.alive else await self._start()

    async def close(self) -> None:
        """End the one that waits."""
        if self._next is not None:
            await (await self._next).kill()
            self._next = None

    async def _start(self) -> Worker:
        process = await asyncio.create_subprocess_exec(
            *self._command,
            cwd=self._cwd,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=_LINE_LIMIT,
            start_new_session=True,  # so that it can be killed with its own children
        )
        return Worker(process)
