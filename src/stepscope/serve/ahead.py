"""Levels that somebody may open next give way to what somebody waits for."""

from __future__ import annotations

from asyncio import Event
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.concurrency import iterate_in_threadpool
from starlette.requests import Request

from stepscope.serve.open_files import Workbench
from stepscope.serve.request_parameters import Query

AHEAD = "levels_inside"


class Ahead:
    """Opens levels ahead in parts, and each part once nobody waits for another answer."""

    def __init__(self) -> None:
        self._waiting = 0
        self._nobody_waits = Event()
        self._nobody_waits.set()

    @contextmanager
    def gives_way(self) -> Iterator[None]:
        """While somebody waits for an answer, no further part begins."""
        self._waiting += 1
        self._nobody_waits.clear()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._nobody_waits.set()

    async def prepare(self, workbench: Workbench, request: Request) -> bool:
        """Open the levels that a request asks for; False once its client went away."""
        query = Query(dict(request.query_params))
        timeline = workbench[request.path_params["id"]].view.timeline
        parts = timeline.open_inside(query.text("path"), query.flag("every"))
        await self._nobody_waits.wait()
        async for _ in iterate_in_threadpool(parts):
            if await request.is_disconnected():
                return False
            await self._nobody_waits.wait()
        return not await request.is_disconnected()
