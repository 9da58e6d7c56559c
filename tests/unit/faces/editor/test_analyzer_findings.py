"""Findings of the analyzer come from a process of its own."""

import asyncio
from typing import Any

import pytest

from stepscope.faces.editor.background import find_findings


class Ended:
    """A process that ends in the moment in which nobody wants its answer any more."""

    async def communicate(self) -> Any:
        raise asyncio.CancelledError

    def kill(self) -> None:
        raise ProcessLookupError


def test_a_process_that_has_just_ended_need_not_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    async def start(*command: str, **options: Any) -> Ended:
        return Ended()

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(find_findings("run.stepscope"))
