"""Work in the background: jobs, their progress in the editor, and answers of other processes."""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from typing import Any

from lsprotocol import types as lsp
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer

from stepscope.base.parallel import own_command, spawned
from stepscope.errors import StepscopeError
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.devices import Wanted, parse_targets, project, read_prices
from stepscope.models.devices.device_answer import DevicesReply

Job = Callable[[], Awaitable[None]]
_NUMBERS = count(1)
NOT_MEASURED = "not measured yet"


class Jobs:
    """Runs jobs in the background of an event loop."""

    def __init__(self) -> None:
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def start(self, key: str, job: Job, pause_s: float = 0.0) -> None:
        """Run `job` after a pause; a running job with the same key is ended first."""
        before = [task for task in self._tasks.get(key, ()) if not task.done()]
        for task in before:
            task.cancel()
        self._tasks[key] = [*before, asyncio.create_task(_run(before, job, pause_s))]

    def cancel(self, key: str) -> bool:
        ended = [task.cancel() for task in self._tasks.get(key, ())]
        return any(ended)

    async def close(self) -> None:
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(before: list[asyncio.Task[None]], job: Job, pause_s: float) -> None:
    if before:
        await asyncio.wait(before)  # they give back their process first
    await asyncio.sleep(pause_s)
    await job()


class Progress:
    """The progress of one measurement in an editor."""

    def __init__(self, server: LanguageServer, message: str, cancel: Callable[[], object]) -> None:
        self._progress = server.work_done_progress
        self._token = f"stepscope {next(_NUMBERS)}"  # Helix shows it
        self._shown = self._ended = False
        window = server.client_capabilities.window
        if window and window.work_done_progress:
            self._asking = asyncio.create_task(self._begin(message, cancel))

    def report(self, message: str, done: float) -> None:
        if self._shown:
            value = lsp.WorkDoneProgressReport(message=message, percentage=int(100 * done))
            self._progress.report(self._token, value)

    def end(self, message: str) -> None:
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
        begin = lsp.WorkDoneProgressBegin(title="stepscope", message=message, cancellable=True, percentage=0)
        self._progress.begin(self._token, begin)
        self._progress.tokens[self._token].add_done_callback(lambda token: token.cancelled() and cancel())


async def find_findings(capture: str) -> Sequence[Mapping[str, Any]]:
    """The findings of `stepscope analyze`; none if it fails, as nothing depends on them."""
    command = own_command("stepscope", "analyze", capture, "--no-cache", "--json")
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL)
    try:
        output, _ = await process.communicate()
    except asyncio.CancelledError:
        with suppress(ProcessLookupError):  # it has just ended by itself
            process.kill()
        raise
    found = json.loads(output) if process.returncode == 0 else {}
    return tuple(found.get("findings", ()))


async def predict_devices(result: Result | None, devices: str, wanted: Wanted) -> DevicesReply:
    """The answer of `stepscope batch --on`, or why there is none."""
    if result is None:
        return DevicesReply(None, NOT_MEASURED)
    pool = spawned(1)
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, _reply, result, devices, wanted)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _reply(result: Result, devices: str, wanted: Wanted) -> DevicesReply:
    try:
        return DevicesReply(project(result, parse_targets(devices, read_prices()), wanted), None)
    except StepscopeError as error:
        return DevicesReply(None, str(error))
