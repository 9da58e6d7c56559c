"""The language server under test, as its clients know it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from soak_clients.lsp_client import Connection
from soak_clients.tally import Tally


@dataclass(frozen=True)
class LspServer:
    """Where it listens, and what its clients share.

    Attributes:
        port: of this machine.
        token: that an editor must send.
        folder: for the files that are measured.
        tally: counts what is asked.
        numbers: of files, each new.
    """

    port: int
    token: str
    folder: Path
    tally: Tally
    numbers: Iterator[int] = field(default_factory=count)

    async def editor(self) -> Connection:
        """A new session of an editor."""
        client = await Connection.to(self.port)
        try:
            answer = await client.start(self.token)
        except BaseException:
            client.close()
            raise
        named = answer.get("result", {}).get("serverInfo", {}).get("name")
        self.tally.check(named == "stepscope", "sessions", str(answer)[:200])
        return client
