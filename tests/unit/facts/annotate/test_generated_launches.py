"""Generated traces with known launches: the links, their evidence, and busy devices."""

from __future__ import annotations

import random

import numpy as np
import pytest
from facts import warning_codes

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

WAYS = ("correlation", "external_id", "order", "unlinked")
KINDS = {"kernel": ("cudaLaunchKernel", "k"), "copy": ("cudaMemcpyAsync", "Memcpy HtoD ")}


def drawn(seed: int, way: str) -> tuple[Trace, list[tuple[str, str]], float]:
    """A step whose device is busy nearly always, its launches, and its busy time, us."""
    chance = random.Random(seed)
    lines, truth, clock, free, busy = [], [], 10, 12, 0
    for number in range(chance.randint(4, 12)):
        begin = clock
        for launch in range(chance.randint(1, 3)):
            call, work = KINDS[chance.choice(list(KINDS))]
            start, length = max(free, clock + 2), chance.randint(40, 90)
            free, busy = start + length, busy + length
            ids = {"correlation": f"corr={100 * number + launch}", "external_id": ""}
            tie = f"External_id={number}" if way == "external_id" else ids.get(way, "")
            name = f"{work}{number}_{launch}"
            if way != "unlinked":
                lines.append(f"main | {clock} {clock + 1} | {call} | n={number}_{launch} {ids.get(way, '')}")
            lines.append(f"stream 7 | {start} {free} | {name} | x=1 {tie}")
            truth.append((f"{number}_{launch}", name))
            clock += 2
        lines.append(f"main | {begin - 1} {clock} | aten::mm | External_id={number}")
        clock += chance.randint(1, 4)
    lines.append(f"main | 0 {clock} | ProfilerStep#1")
    return annotate(drawn_trace("\n".join(lines))), truth, busy


def found_links(trace: Trace) -> list[tuple[str, str]]:
    names = trace.events.text("name")
    links = [
        (str(trace.event_arguments(row["cpu_event"]).get("n")), row["device_event"])
        for row in trace["launches"].rows()
    ]
    return sorted((call, names[work] or "") for call, work in links)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("way", WAYS)
def test_launches_of_generated_steps(seed: int, way: str) -> None:
    trace, truth, busy = drawn(seed, way)
    assert found_links(trace) == (sorted(truth) if way != "unlinked" else [])
    assert set(trace["launches"].text("evidence")) == ({way} - {"unlinked"})
    assert trace["steps"]["device_busy_ns"].tolist() == [busy * 1000]
    assert summarize(trace).verdict.bound_by == "device"
    codes = {
        "order": {"linked_by_order": len(truth)},
        "correlation": {},
        "external_id": {"linked_by_external_id": len(truth)},
        "unlinked": {"unlinked_device_work": len(truth)},
    }
    assert warning_codes(trace) == codes[way]


def test_an_operator_stands_for_launch_calls_that_were_not_recorded() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  20 | aten::mm   | External_id=5
        main     | 22  30 | aten::relu | External_id=6
        stream 7 | 30  60 | sgemm      | External_id=5
        stream 7 | 60  90 | relu       | External_id=6
        """)
    )
    names = trace.events.text("name")
    links = [(names[row["cpu_event"]], names[row["device_event"]]) for row in trace["launches"].rows()]
    assert links == [("aten::mm", "sgemm"), ("aten::relu", "relu")]


def test_work_that_runs_before_any_call_is_not_linked_by_order() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     | 10  12 | cudaLaunchKernel
        main     | 20  22 | cudaLaunchKernel
        main     | 30  32 | cudaLaunchKernel
        main     | 40  42 | cudaLaunchKernel
        stream 7 |  2   9 | earlier
        stream 7 | 15  20 | first
        stream 7 | 25  30 | second
        stream 7 | 35  40 | third
        stream 7 | 45  50 | fourth
        """)
    )
    events = trace.events
    delays = trace["launches"]["delay_ns"].tolist()
    assert delays == [5000] * 4
    assert events.text("name").take(trace["launches"]["device_event"])[0] == "first"
    assert np.isin("earlier", list(events.text("name")))
