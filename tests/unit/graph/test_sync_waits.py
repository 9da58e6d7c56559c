"""When the CUDA event that a `cuda_sync` event names was recorded."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.graph.device_tasks import record_time, record_times
from stepscope.testing import drawn_trace

NEVER = 2**63 - 1
RECORDS = """
    main |  0  4 | aten::mm
    main |  5  6 | cudaEventRecord      | corr=3
    main |  7  8 | cudaEventSynchronize | corr=4
    main |  9 10 | cudaEventRecord      | corr=3
    main | 11 12 | hipEventRecord
"""


def test_records_are_found_by_correlation_the_first_of_each() -> None:
    trace = drawn_trace(RECORDS)
    assert record_times(trace, np.ones(len(trace.events), np.bool_)) == {3: 5000}


@pytest.mark.parametrize(
    ("argument", "time_ns"), [(3, 5000), (4, NEVER), (-1, NEVER), (None, NEVER), ([3], NEVER)]
)
def test_an_unnamed_record_was_never_made(argument: object, time_ns: int) -> None:
    assert record_time({3: 5000}, {"wait_on_cuda_event_record_corr_id": argument}) == time_ns
