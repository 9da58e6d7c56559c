"""Loops that fill the queue of their device: what is recorded, and what a faster device brings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from queued_loop import QueuedLoop

from stepscope.facts.annotate.device.idle import full_queue_launches
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.steps.step_table import step_lengths
from stepscope.graph import build_graph, scale, select, simulate
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.trace.concat import concat

DEVICE_BOUND = [QueuedLoop(600, 5, 20), QueuedLoop(1500, 4, 12), QueuedLoop(300, 10, 40)]
CPU_BOUND = [QueuedLoop(600, 10, 4), QueuedLoop(40, 14, 7)]


@pytest.mark.parametrize("loop", DEVICE_BOUND + CPU_BOUND)
def test_steps_are_as_long_as_before_the_recording(loop: QueuedLoop) -> None:
    steps = loop.recording()["steps"]
    assert step_lengths(steps) / 1000 == pytest.approx([loop.step_us] * 3, rel=0.02)


@pytest.mark.parametrize("loop", DEVICE_BOUND)
def test_a_device_that_still_does_earlier_work_is_not_idle(loop: QueuedLoop) -> None:
    steps = loop.recording()["steps"]
    assert steps["device_idle_ns"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("loop", DEVICE_BOUND)
def test_the_cpu_does_not_work_while_it_waits_for_room_in_the_queue(loop: QueuedLoop) -> None:
    graph = build_graph(loop.recording())
    on_cpu = select(graph, on_device=False)
    busy = graph.tasks["duration_ns"][on_cpu].sum() / 1000
    assert busy <= 1.2 * len(graph.window.steps) * loop.launches * loop.call_us


@pytest.mark.parametrize("loop", DEVICE_BOUND)
def test_work_from_before_the_recording_fills_the_queue_as_well(loop: QueuedLoop) -> None:
    alone = replace(loop, recorded=1, shows_queue=True)
    graph = build_graph(alone.recording())
    faster = simulate(scale(graph, select(graph, on_device=True), 0.1)).step_ns.sum()
    gain = loop.step_us / loop.with_device(10).step_us
    assert simulate(graph).step_ns.sum() / faster == pytest.approx(gain, rel=0.15)


@pytest.mark.parametrize("loop", CPU_BOUND)
def test_a_cpu_bound_loop_never_waits_for_room(loop: QueuedLoop) -> None:
    trace = loop.recording()
    assert not len(full_queue_launches(trace, np.flatnonzero(device_work(trace))))


@pytest.mark.parametrize("loop", DEVICE_BOUND)
def test_a_copy_is_longer_than_a_launch_where_there_is_room_too(loop: QueuedLoop) -> None:
    trace = replace(loop, copy_us=100).recording()
    full = full_queue_launches(trace, np.flatnonzero(device_work(trace)))
    copies = trace.events.text("name").mask("cudaMemcpyAsync")
    assert copies.sum() == 3
    assert len(full)
    assert not copies[full].any()


@pytest.mark.parametrize("factor", [0.5, 1, 1.5, 3, 10])
@pytest.mark.parametrize("loop", DEVICE_BOUND + CPU_BOUND)
def test_a_faster_device_brings_what_the_loop_on_it_would_take(loop: QueuedLoop, factor: float) -> None:
    graph = build_graph(loop.recording())
    faster = scale(graph, select(graph, on_device=True), 1 / factor)
    found = simulate(faster).step_ns.sum() / simulate(graph).step_ns.sum()
    assert found == pytest.approx(loop.with_device(factor).step_us / loop.step_us, rel=0.1)


@pytest.mark.parametrize("factor", [3, 10])
@pytest.mark.parametrize("loop", DEVICE_BOUND)
def test_a_cpu_that_loses_its_lead_makes_no_range_wide(loop: QueuedLoop, factor: float) -> None:
    change = parse_request(f"scale:select=category=kernel,factor={1 / factor}", CHANGES)
    low, high = predict(build_graph(loop.recording()), [change]).range
    truth = loop.with_device(factor).step_us / 1000
    assert low * 0.999 <= truth <= high * 1.001
    assert high - low < 0.35 * truth  # the CPU may be 0.7 times as slow without waits


def test_the_queue_of_one_rank_says_nothing_of_another() -> None:
    ranks = [CPU_BOUND[0].recording(0), DEVICE_BOUND[0].recording(1)]
    steps = [build_graph(concat(ranks), rank).window.steps for rank in (0, 1)]
    assert steps == [(5, 6, 7), (6, 7)]


def test_a_long_launch_into_an_empty_queue_is_work_of_the_cpu() -> None:
    trace = QueuedLoop(600, 10, 4).recording()
    events = trace.events
    longer = events["duration_ns"].copy()
    longer[np.flatnonzero(events.text("name").mask("cudaLaunchKernel"))[700]] *= 100
    trace = trace.with_events(duration_ns=longer)
    assert not len(full_queue_launches(trace, np.flatnonzero(device_work(trace))))
