"""Measuring in the background: one thread at a time talks to the process that measures."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import BatchError
from stepscope.faces.editor.measuring import MeasureError, MeasureRequest, Measuring, Settings


class Session:
    """Measures until told to end, and takes its time over ending."""

    in_place = False

    def __init__(self) -> None:
        self.cancel, self.begun, self.ended = (threading.Event() for _ in range(3))
        self.warm = 0

    def profile(self, path: str, *_: Any, **__: Any) -> Any:
        self.begun.set()
        self.cancel.wait(60)
        self.ended.wait(60)
        raise BatchError(f"expected {path} to go on, found it cancelled", path, 3)

    def warm_up(self) -> None:
        self.warm += 1

    def close(self) -> None: ...


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Session:
    session = Session()
    path = "stepscope.faces.editor.measuring.Session"
    monkeypatch.setattr(path, lambda on_progress: session)
    return session


async def begin(measuring: Measuring, session: Session, entry: str = "train.py") -> Any:
    task = asyncio.create_task(measuring(MeasureRequest(entry, Settings()), lambda words, done: None))
    await asyncio.to_thread(session.begun.wait, 60)
    return task


def test_stopping_twice_still_waits_for_the_thread(session: Session) -> None:
    async def scenario() -> bool:
        task = await begin(Measuring(), session)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        waiting = not task.done()
        session.ended.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return waiting

    assert asyncio.run(scenario())


def test_a_file_that_is_opened_while_another_is_measured_leaves_the_process_alone(session: Session) -> None:
    async def scenario() -> tuple[int, int]:
        measuring = Measuring()
        measuring.prepare()
        task = await begin(measuring, session)
        before = session.warm
        measuring.prepare()
        session.cancel.set()
        session.ended.set()
        with pytest.raises(MeasureError):
            await task
        return before, session.warm

    assert asyncio.run(scenario()) == (1, 1)


def test_messages_name_files_of_the_scripts_folder_without_it(session: Session, tmp_path: Path) -> None:
    async def scenario() -> str:
        task = await begin(Measuring(), session, str(tmp_path / "train.py"))
        session.cancel.set()
        session.ended.set()
        with pytest.raises(MeasureError) as raised:
            await task
        return raised.value.problem.message

    assert asyncio.run(scenario()) == "expected train.py to go on, found it cancelled"


def test_an_editor_that_leaves_while_the_process_starts_leaves_no_process(session: Session) -> None:
    order: list[str] = []

    def warm_up() -> None:
        session.ended.wait(60)
        order.append("started")

    session.warm_up = warm_up  # type: ignore[method-assign]
    session.close = lambda: order.append("closed")  # type: ignore[method-assign]

    async def scenario() -> None:
        measuring = Measuring()
        measuring.prepare()
        closing = asyncio.create_task(measuring.close())
        await asyncio.sleep(0.05)
        session.ended.set()
        await closing

    asyncio.run(scenario())
    assert order == ["started", "closed"]
