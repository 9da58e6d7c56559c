"""Levels that are opened ahead: in parts, after what somebody waits for, and not for nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from starlette.requests import Request

from stepscope.faces.page.app import Ahead


def opening(opened: list[int], parts: int) -> Any:
    """Files with one trace, whose levels are opened in so many parts."""

    def open_inside(path: str, every: bool) -> Iterator[None]:
        assert (path, every) == ("s1.0", False)
        for part in range(parts):
            opened.append(part)
            yield

    view = SimpleNamespace(timeline=SimpleNamespace(open_inside=open_inside))
    return {"run": SimpleNamespace(view=view)}


class Client:
    """A request for the levels inside a step, of a client that may go away."""

    def __init__(self) -> None:
        self.gone = False

    @property
    def request(self) -> Request:
        """The request, as the server sees it."""
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/",
            "headers": [],
            "query_string": b"path=s1.0",
            "path_params": {"id": "run"},
        }
        return Request(scope, self.receive)

    async def receive(self) -> dict[str, Any]:
        """What the client sends next: nothing, until it goes away."""
        while not self.gone:
            await asyncio.sleep(0.001)
        return {"type": "http.disconnect"}


async def until(done: Any) -> None:
    """Wait for a condition."""
    for _ in range(5000):
        if done():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError


def test_all_parts_are_opened_where_nobody_waits() -> None:
    opened: list[int] = []
    assert asyncio.run(Ahead().prepare(opening(opened, 3), Client().request))
    assert opened == [0, 1, 2]


def test_nothing_is_opened_while_somebody_waits() -> None:
    async def run() -> None:
        ahead, opened = Ahead(), list[int]()
        with ahead.gives_way():
            with ahead.gives_way():
                work = asyncio.create_task(ahead.prepare(opening(opened, 2), Client().request))
                await asyncio.sleep(0.02)
            await asyncio.sleep(0.02)
            assert opened == []
        assert await work
        assert opened == [0, 1]

    asyncio.run(run())


def test_for_a_client_that_went_away_no_further_part_is_opened() -> None:
    async def run() -> None:
        ahead, opened, client = Ahead(), list[int](), Client()
        files = opening(opened, 1000)
        work = asyncio.create_task(ahead.prepare(files, client.request))
        await until(lambda: len(opened) > 2)
        client.gone = True
        assert not await work
        assert len(opened) < 1000

    asyncio.run(run())
