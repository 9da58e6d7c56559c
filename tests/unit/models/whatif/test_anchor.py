"""A graph at the CPU's unwatched pace: its replay is the step that nothing watched."""

from __future__ import annotations

import pytest
from drawn_steps import graph_of, step_us

from stepscope.facts.annotate import annotate
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import host_and_device
from stepscope.models.whatif.anchor import anchored, busiest_ns, host_ms, step_ms
from stepscope.testing import drawn_trace

LAUNCHES = """
    main     |   0 100 | ProfilerStep#0
    main     |  10  50 | aten::mul       |
    main     |  20  40 | cudaLaunchKernel | corr=1
    main     |  50  90 | aten::add       |
    main     |  60  80 | cudaLaunchKernel | corr=2
    stream 7 |  45 {first} | mul_kernel | corr=1
    stream 7 |  {second} {end} | add_kernel | corr=2
"""
OF_CPU = LAUNCHES.format(first=50, second=85, end=90)
OF_DEVICE = LAUNCHES.format(first=400, second=400, end=800)


def test_a_step_that_the_cpu_limits_becomes_the_unwatched_one() -> None:
    graph = anchored(graph_of(OF_CPU), step=0.05)
    assert step_ms(graph) == pytest.approx(0.05, rel=0.01)


def test_a_step_that_the_device_limits_says_nothing_about_the_cpu() -> None:
    graph = graph_of(OF_DEVICE)
    assert anchored(graph, step=0.7) is graph
    assert anchored(graph) is graph


def test_a_measured_host_is_the_floor_of_what_a_change_may_gain() -> None:
    graph = anchored(graph_of(OF_DEVICE), host=0.06)
    assert host_ms(graph) == pytest.approx(0.06, rel=0.01)
    assert step_ms(graph) == pytest.approx(0.78, abs=0.03)  # the device's
    assert (
        step_us(graph, "scale:select=name=mul_kernel,factor=0.01", "scale:select=name=add_kernel,factor=0.01")
        < 90
    )


def test_steps_without_a_device_stay() -> None:
    graph = graph_of("main | 0 10 | ProfilerStep#0\nmain | 1 9 | aten::mul |")
    assert anchored(graph, step=0.002) is graph


def test_a_thread_that_polls_sleeps_between() -> None:
    """As one that watches collectives: it calls once in three steps."""
    steps = "\n".join(
        f"main | {at} {at + 100} | ProfilerStep#{number}\n"
        f"main | {at + 20} {at + 90} | cudaLaunchKernel | corr={number + 1}\n"
        f"stream 7 | {at + 30} {at + 90} | kernel | corr={number + 1}"
        for number, at in enumerate((0, 100, 200))
    )
    polls = "watcher | 15 17 | cudaEventQuery\nwatcher | 280 282 | cudaEventQuery"
    alone, watched = (busiest_ns(graph_of(text)).tolist() for text in (steps, f"{steps}\n{polls}"))
    assert alone == watched


def test_the_report_says_which_side_limits_steps_that_nothing_records() -> None:
    for host, device, ending in ((30, 86, "the device limits it"), (86, 30, "the CPU limits it")):
        apart = {"host_ns": [host * 1_000_000], "device_ns": [device * 1_000_000]}
        summary = summarize(annotate(drawn_trace(OF_DEVICE, capture={"unrecorded_steps": {"apart": apart}})))
        assert host_and_device(summary) == (
            f"each alone, the CPU needs {host}.00 ms for a step and the device {device}.00 ms: {ending}"
        )
    assert host_and_device(summarize(annotate(drawn_trace(OF_DEVICE)))) == ""
