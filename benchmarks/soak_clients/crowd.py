"""Many clients at once, each again and again, until it is time to stop."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from soak_clients.tally import Tally

Client = Callable[[random.Random], Awaitable[None]]


class Crowd:
    """Runs clients.

    Args:
        tally: counts connections that broke.
        seed: of the random choices; each client has its own.
        pause_s: the longest pause between two runs of a client.
        idle_while: no client begins again while this file exists.
    """

    def __init__(self, tally: Tally, seed: int, pause_s: float, idle_while: Path | None = None) -> None:
        self.stop = asyncio.Event()
        self._idle_while = idle_while
        self._tally, self._seed, self._pause_s = tally, seed, pause_s
        self._flood = asyncio.Lock()
        self._last_flood = -math.inf  # when it ended

    async def run(self, clients: Iterable[Client]) -> None:
        """Run clients side by side until `stop` is set."""
        await asyncio.gather(*(self._repeat(*one) for one in enumerate(clients)))

    @asynccontextmanager
    async def flood(self) -> AsyncIterator[None]:
        """While more connections are open than a server takes, others may break."""
        async with self._flood:
            yield
        self._last_flood = time.monotonic()

    async def _repeat(self, number: int, client: Client) -> None:
        choose = random.Random(f"{self._seed} {number}")
        while not self.stop.is_set():
            began = time.monotonic()
            try:
                await client(choose)
            except (OSError, EOFError, TimeoutError) as error:
                if not self._flood.locked() and self._last_flood < began:
                    self._tally.wrong(f"{client.__qualname__}: {type(error).__name__} {error}")
            await asyncio.sleep(choose.uniform(0.1, 1) * self._pause_s)
            while self.is_idle():
                await asyncio.sleep(1)

    def is_idle(self) -> bool:
        """Whether clients wait for the file to go."""
        return self._idle_while is not None and self._idle_while.exists()
