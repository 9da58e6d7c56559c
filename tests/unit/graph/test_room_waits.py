"""Whether a what-if says that the CPU was recorded while it waited for room in the queue."""

from __future__ import annotations

from dataclasses import replace

import pytest
from queued_loop import QueuedLoop

from stepscope.graph import build_graph
from stepscope.models.whatif.anchor import waited_for_room


@pytest.mark.parametrize("recorded", [1, 3])
@pytest.mark.parametrize(
    ("loop", "waits"),
    [(QueuedLoop(600, 5, 20), True), (QueuedLoop(300, 10, 40), True), (QueuedLoop(600, 10, 4), False)],
)
def test_launches_that_wait_for_room_are_seen(loop: QueuedLoop, waits: bool, recorded: int) -> None:
    assert waited_for_room(build_graph(replace(loop, recorded=recorded).recording())) == waits
