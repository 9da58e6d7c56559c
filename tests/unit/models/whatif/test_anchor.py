"""A graph at the CPU's unwatched pace: its replay is the step that nothing watched."""

from __future__ import annotations

import pytest
from drawn_steps import graph_of, step_us

from stepscope.models.whatif.anchor import anchored, host_ms, step_ms

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
    graph = anchored(graph_of(OF_CPU), unwatched_ms=0.05)
    assert step_ms(graph) == pytest.approx(0.05, rel=0.01)


def test_a_step_that_the_device_limits_says_nothing_about_the_cpu() -> None:
    graph = graph_of(OF_DEVICE)
    assert anchored(graph, unwatched_ms=0.7) is graph
    assert anchored(graph) is graph


def test_a_measured_host_is_the_floor_of_what_a_change_may_gain() -> None:
    graph = anchored(graph_of(OF_DEVICE), unwatched_host_ms=0.06)
    assert host_ms(graph) == pytest.approx(0.06, rel=0.01)
    assert step_ms(graph) == pytest.approx(0.78, abs=0.03)  # the device's
    assert (
        step_us(graph, "scale:select=name=mul_kernel,factor=0.01", "scale:select=name=add_kernel,factor=0.01")
        < 90
    )


def test_steps_without_a_device_stay() -> None:
    graph = graph_of("main | 0 10 | ProfilerStep#0\nmain | 1 9 | aten::mul |")
    assert anchored(graph, unwatched_ms=0.002) is graph
