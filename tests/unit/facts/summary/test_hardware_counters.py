"""Hardware counters as Kineto writes them (libkineto/src/CuptiPMSamplingProfiler.cpp, output_json.cpp)."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import stepscope
from stepscope.facts.summary.facts import HardwareCounter
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import print_report
from stepscope.trace.trace import Trace

ACTIVE, READ = "sm__cycles_active.avg.pct_of_peak_sustained_elapsed", "dram__bytes_read.sum"


def sampled(folder: Path, category: str = "hardware_counters", values: tuple[float, ...] = (90, 60)) -> Trace:
    """Two steps of 10 ms, each with a kernel of 8 ms; a sample each ms, above 0 while the kernel runs."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        at = step * 10_000
        mark, call = {"name": f"ProfilerStep#{step}"}, {"correlation": step + 1}
        host, device = {"ph": "X", "pid": 7, "tid": 7}, {"pid": 0, "ts": at}
        events += [
            {**host, "cat": "user_annotation", **mark, "ts": at, "dur": 10_000},
            {
                **host,
                "cat": "cuda_runtime",
                "name": "cudaLaunchKernel",
                "ts": at + 100,
                "dur": 9,
                "args": call,
            },
            {**device, "ph": "X", "cat": "kernel", "name": "gemm", "tid": 7, "ts": at + 1000, "dur": 8000}
            | {"args": {**call, "device": 0, "stream": 7}},
        ]
        for sample in range(10):
            works = 1 <= sample < 9
            arguments = {ACTIVE: values[step] * works, READ: 5e6 * works}
            events.append(
                {**device, "ph": "C", "cat": category, "name": "CUPTI PM Sampling", "tid": 0}
                | {"ts": at + 1000 * sample, "args": arguments}
            )
    path = folder / "kineto.json"
    path.write_text(json.dumps({"traceEvents": events}))
    return stepscope.open(path, cache=False)


def test_means_over_steps_and_while_work_runs(tmp_path: Path) -> None:
    counters = summarize(sampled(tmp_path)).counters
    assert counters == [
        HardwareCounter(0, ACTIVE, pytest.approx(60), pytest.approx(75)),
        HardwareCounter(0, READ, pytest.approx(4e6), pytest.approx(5e6)),
    ]
    (second, _) = summarize(sampled(tmp_path), step=1).counters
    assert (second.mean, second.working) == (pytest.approx(48), pytest.approx(60))


@pytest.mark.parametrize("category", ["hardware_counters", "gpu_pm_counter", "mtia_counters"])
def test_their_track_is_the_devices(category: str, tmp_path: Path) -> None:
    trace = sampled(tmp_path, category)
    sql = "select distinct device, kind from counters join tracks on tracks.id = counters.track"
    assert trace.query(sql).to_pylist() == [{"device": 0, "kind": "device"}]


def test_counters_of_something_else_are_no_devices(tmp_path: Path) -> None:
    assert summarize(sampled(tmp_path, "memory")).counters == []


def test_the_report_shows_shares_of_the_peak_and_counts_as_people_write_them(tmp_path: Path) -> None:
    console = Console(width=100, record=True, file=StringIO())
    print_report(console, [summarize(sampled(tmp_path))])
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["sm__cycles_active,", "of", "peak", "60%", "75%", "0"] in rows
    assert ["dram__bytes_read.sum", "4,000,000", "5,000,000", "0"] in rows
