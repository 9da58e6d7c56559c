"""One job per key at a time: after a short pause (debouncing), a newer job replaces the older."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Job = Callable[[], Awaitable[None]]


class Jobs:
    """Runs jobs in the background of an event loop.

    Example:
        >>> jobs = Jobs()  # doctest: +SKIP
        >>> jobs.start("train.py", measure, pause_s=0.3)  # doctest: +SKIP
        >>> jobs.start("train.py", measure, pause_s=0.3)  # ends the first  # doctest: +SKIP
    """

    def __init__(self) -> None:
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}

    def start(self, key: str, job: Job, pause_s: float = 0.0) -> None:
        """Run `job` after a pause; a running job with the same key is ended first."""
        before = [task for task in self._tasks.get(key, ()) if not task.done()]
        for task in before:
            task.cancel()
        self._tasks[key] = [*before, asyncio.create_task(_run(before, job, pause_s))]

    def cancel(self, key: str) -> bool:
        """End the job with this key; return whether there was one."""
        ended = [task.cancel() for task in self._tasks.get(key, ())]
        return any(ended)

    async def close(self) -> None:
        """End all jobs and wait for them."""
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(before: list[asyncio.Task[None]], job: Job, pause_s: float) -> None:
    if before:
        await asyncio.wait(before)  # they give back their process first
    await asyncio.sleep(pause_s)
    await job()
