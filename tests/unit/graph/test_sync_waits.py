"""When the CUDA event that a `cuda_sync` event names was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.graph.device_tasks import sync_events
from stepscope.testing import drawn_trace

NEVER = 2**63 - 1
RECORDS = """
    main     |  0  4 | aten::mm
    main     |  5  6 | cudaEventRecord      | corr=3
    main     |  7  8 | cudaEventSynchronize | corr=4
    main     |  9 10 | cudaEventRecord      | corr=3
    main     | 11 12 | hipEventRecord
    stream 7 |  7  8 | Event Synchronize    | corr={identity} {argument}
"""


@pytest.mark.parametrize(
    ("argument", "time_ns"), [("3", 5000), ("4", NEVER), ("-1", NEVER), ("null", NEVER), ("[3]", NEVER)]
)
def test_a_record_is_found_by_its_correlation_the_first_of_each(argument: str, time_ns: int) -> None:
    text = RECORDS.format(identity=4, argument=f"wait__on__cuda__event__record__corr__id={argument}")
    trace = drawn_trace(text)
    calls = np.flatnonzero(trace.events.text("name").mask("cudaEventSynchronize"))
    waits = trace.events.text("category").mask("sync")
    assert [(call, at) for call, _, at in sync_events(trace, calls, waits)] == [(calls[0], time_ns)]


def test_without_a_call_there_is_no_wait() -> None:
    trace = drawn_trace(RECORDS.format(identity=9, argument=""))
    calls = np.flatnonzero(trace.events.text("name").mask("cudaEventSynchronize"))
    assert [*sync_events(trace, calls, trace.events.text("category").mask("sync"))] == []
