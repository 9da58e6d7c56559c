"""When the CUDA event that a `cuda_sync` event names was recorded."""

from __future__ import annotations

import numpy as np
import pytest
from drawn import links

from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph
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
    assert [(call, at) for call, _, _, at in sync_events(trace, calls, waits)] == [(calls[0], time_ns)]


def test_without_a_call_there_is_no_wait() -> None:
    trace = drawn_trace(RECORDS.format(identity=9, argument=""))
    calls = np.flatnonzero(trace.events.text("name").mask("cudaEventSynchronize"))
    assert [*sync_events(trace, calls, trace.events.text("category").mask("sync"))] == []


def on_two_devices(text: str) -> Graph:
    """The graph of a trace whose tracks `… of 1` are streams of a second device."""
    trace = drawn_trace(text)
    tracks = trace["tracks"]
    second = tracks.text("name").where(lambda name: name.endswith("of 1"))
    trace = trace.with_table(tracks.with_columns(device=np.where(second, 1, tracks["device"])))
    return build_graph(annotate(trace)).check()


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize(
    ("call", "stream"),
    [("cudaStreamSynchronize", 7), ("cudaEventSynchronize", 7), ("cudaDeviceSynchronize", -1)],
)
def test_a_wait_is_for_the_streams_of_its_own_device(call: str, stream: int, device: int) -> None:
    graph = on_two_devices(f"""
        main          |  0 100 | ProfilerStep#0
        main          | 10  12 | cudaLaunchKernel | corr=7
        main          | 12  14 | cudaLaunchKernel | corr=8
        main          | 20  75 | {call}           | corr=9
        stream 7 of 0 | 20  60 | first            | corr=7
        stream 7 of 1 | 20  70 | second           | corr=8
        stream 7 of {device} | 71 74 | sync       | corr=9 stream={stream} cat=sync
    """)
    assert links(graph, "synchronization") == [(("first", "second")[device], call)]


@pytest.mark.parametrize("device", [0, 1])
def test_a_stream_waits_for_streams_of_its_own_device(device: int) -> None:
    graph = on_two_devices(f"""
        main          |  0 100 | ProfilerStep#0
        main          | 10  11 | cudaLaunchKernel    | corr=7
        main          | 11  12 | cudaLaunchKernel    | corr=8
        main          | 12  13 | cudaStreamWaitEvent | corr=9
        main          | 13  14 | cudaLaunchKernel    | corr=10
        main          | 14  15 | cudaLaunchKernel    | corr=11
        stream 7 of 0 | 20  60 | first               | corr=7
        stream 7 of 1 | 20  60 | second              | corr=8
        stream 9 of 0 | 62  70 | third               | corr=10
        stream 9 of 1 | 62  70 | fourth              | corr=11
        stream 9 of {device} | 12 13 | Stream Wait Event | corr=9 stream=9 wait__on__stream=7
    """)
    expected = [("first", "third"), ("second", "fourth")][device]
    assert links(graph, "synchronization") == [expected]
