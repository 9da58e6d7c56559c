"""The graphs of the four traces of A100 programs, checked by hand against their events."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from stepscope.facts.load import open as open_trace
from stepscope.graph import Graph, build_graph

Link = tuple[str, str, str]
US = 1000


def graph_of(traces: Path, name: str) -> Graph:
    return build_graph(open_trace(traces / "critical_path_a100" / f"{name}.json.gz")).check()


def links(graph: Graph) -> list[Link]:
    """Kind, and the names at both ends, shortened to their first word or so."""
    names = [(name or "")[:24] for name in graph.tasks.text("name")]
    rows = zip(graph.links.text("kind"), graph.links["source"], graph.links["target"], strict=True)
    return [(str(kind), names[source], names[target]) for kind, source, target in rows]


def test_one_stream_with_an_event(traces: Path) -> None:
    """The event is recorded behind the spin kernel, so its synchronization waits for that one."""
    graph = graph_of(traces, "cuda_event_sync")
    spin, copy = "at::cuda::(anonymous nam", "Memcpy DtoH (Device -> P"
    elementwise, reduce = "void at::native::vectori", "void at::native::reduce_"
    assert sorted(links(graph)) == sorted(
        [
            ("launch", "cudaLaunchKernel", elementwise),
            ("launch", "cudaLaunchKernel", reduce),
            ("launch", "cudaLaunchKernel", elementwise),
            ("launch", "cudaMemcpyAsync", copy),
            ("launch", "cudaLaunchKernel", spin),
            ("synchronization", copy, "cudaMemcpyAsync"),
            ("synchronization", copy, "cudaStreamSynchronize"),
            ("synchronization", spin, "cudaEventSynchronize"),
            ("synchronization", spin, "cudaDeviceSynchronize"),
        ]
    )


def test_three_streams_one_of_which_waits_for_another(traces: Path) -> None:
    """Stream 24 waits for the record on stream 20 (correlation 1385), not for stream 28."""
    graph = graph_of(traces, "cuda_event_sync_multi_stream")
    sgemm, memset = "ampere_sgemm_128x64_nn", "Memset (Device)"
    assert Counter(links(graph)) == {
        ("launch", "cudaMemsetAsync", memset): 3,
        ("launch", "cudaLaunchKernel", sgemm): 3,
        ("synchronization", sgemm, "cudaDeviceSynchronize"): 3,
        ("synchronization", sgemm, memset): 1,
    }
    row = next(row for row, link in enumerate(links(graph)) if link[1:] == (sgemm, memset))
    threads = [
        graph.threads.text("name")[graph.tasks["thread"][graph.links[end][row]]]
        for end in ("source", "target")
    ]
    assert threads == ["stream 20", "stream 24"]


@pytest.mark.parametrize("name", ["simple_add", "alexnet"])
def test_a_small_network_on_two_streams(traces: Path, name: str) -> None:
    """98 calls launch 98 pieces of work, and 42 calls wait for some.

    The second stream has its first work after the first of five device synchronizations, so that
    one waits for one stream and the other four for two; so do all 15 calls of cudaFree. Each of 16
    copies is followed by a synchronization with its stream; the calls of the 6 large ones last until
    most is copied. 20 stream waits tell of 6 different pairs that have work on both sides.
    """
    graph = graph_of(traces, name)
    kinds = Counter(graph.links.text("kind"))
    assert kinds == {"launch": 98, "synchronization": 1 + 4 * 2 + 15 * 2 + 16 + 6 + 6}
    on_device = graph.on_device
    target = graph.links["target"]
    waits = graph.links.text("kind").mask("synchronization")
    names = graph.tasks.text("name")
    assert Counter(names.take(target[waits & ~on_device[target]])) == {
        "cudaDeviceSynchronize": 9,
        "cudaFree": 30,
        "cudaStreamSynchronize": 16,
        "aten::copy_": 6,
    }
    copies = graph.links["source"][waits & (names.mask("cudaStreamSynchronize")[target])]
    assert set(names.take(copies)) == {"Memcpy HtoD (Pageable -> Device)"}
    assert (waits & on_device[target]).sum() == 6
