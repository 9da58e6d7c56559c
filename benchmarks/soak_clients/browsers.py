"""Browsers: clients of `stepscope view` that compare every answer.

The reference is the answer that another server gives to the same question when nobody else asks.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import closing
from urllib.parse import quote

from soak_clients.http_client import Address, Answer, receive
from soak_clients.tally import Tally

_SQL = "SELECT category, count(*) FROM events GROUP BY 1 ORDER BY 1"
_QUESTIONS = (
    "overview",
    "levels",
    "axis",
    "slices",
    "slices?zoom=3&tile=2",
    "counter",
    "area",
    "tiles",
    "area?from=0&to=2000000",
    "search?text=mm",
    "search_hits?text=relu",
    "modules",
    "kernels",
    "collectives",
    "findings",
    "contexts",
    "contexts?up=1",
    "context_findings",
    "pair?changes=cuda_graphs",
    "changes",
    "whatif?changes=cuda_graphs",
    "whatif?changes=nothing",
    "memory",
    "diff",
    "sources",
    "schema",
    f"query?sql={quote(_SQL)}",
    "query?sql=DROP%20TABLE%20events",
    "nothing",
    "path?event=5",
    "path?event=-1",
    "path?event=99999999999999999999",
    "level?path=s9.9",
    "search?text=%ED%A0%80",
    "level?path=%ED%A0%80",
    "source?file=..%2F..%2Fetc%2Fpasswd",
)


_BUSY = 429


class Browsers:
    """Browsers of one server, and what each answer must be.

    Args:
        address: of the server under test.
        tally: counts what is asked.
    """

    def __init__(self, address: Address, tally: Tally) -> None:
        self.address, self.tally = address, tally
        self.reference: dict[str, Answer] = {}
        self.large = ""

    async def ready(self) -> None:
        """Wait until the server has read its traces."""
        while b'"loading"' in (await self.address.ask("/api/traces")).body:
            await asyncio.sleep(0.1)

    async def learn(self, other: Address) -> None:
        """Take the reference answers from a server that nobody else asks."""
        while b'"loading"' in (await other.ask("/api/traces")).body:
            await asyncio.sleep(0.1)
        traces = json.loads((await other.ask("/api/traces")).body)["traces"]
        for trace in (one["id"] for one in traces):
            prefix = f"/api/traces/{trace}"
            levels = json.loads((await other.ask(f"{prefix}/levels")).body)["levels"]
            steps = levels[0]["operations"]["id"]
            of_steps = (f"{name}?path={step}" for step in steps for name in ("level",))
            for question in (*_QUESTIONS, *of_steps):
                path = f"{prefix}/{question}"
                self.reference[path] = await other.ask(path)
        self.reference |= {path: await other.ask(path) for path in ("/", "/index.js", "/none")}
        self.large = max(self.reference, key=lambda path: len(self.reference[path].body))

    async def browse(self, choose: random.Random) -> None:
        """Several questions over one connection, each answer compared with the reference."""
        reader, writer = await self.address.connect()
        with closing(writer):
            for path in choose.choices(list(self.reference), k=choose.randrange(1, 12)):
                encoding = choose.choice(["gzip", "identity"])
                writer.write(self.address.request(path, Accept_Encoding=encoding))
                answer = await receive(reader)
                self.compare("questions of the page", path, answer)
                await asyncio.sleep(choose.uniform(0, 0.05))

    def compare(self, kind: str, path: str, answer: Answer) -> None:
        """Compare an answer with the reference."""
        wanted = self.reference[path]
        if answer.status == _BUSY and "/query?" in path:  # one query at a time
            self.tally.count("queries put off")
            return
        what = f"{path}: {answer.status} {answer.body[:100]!r}, not {wanted.status}"
        self.tally.check(answer == wanted, kind, what)
