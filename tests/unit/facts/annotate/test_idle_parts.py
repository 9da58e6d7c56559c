"""The parts of idle time: what blocks and feeds a device, whose queue is full, and the host's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facts import us

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.device import idle, one_off_costs
from stepscope.facts.annotate.device.idle import (
    blocks,
    busiest_device,
    busy_time,
    busy_times,
    copy_times,
    data_loading_times,
    exposed_communication,
    full_queue_launches,
    python_time,
    time_blocked,
    turns,
    usual_launch_ns,
    working_devices,
)
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.testing import drawn_trace
from stepscope.trace.intervals import Intervals
from stepscope.trace.schema import IDLE, IDLE_CAUSES, STAGE_RUNS, STEPS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace


def spans(intervals: Intervals) -> list[tuple[int, int]]:
    """In microseconds."""
    return list(zip((intervals.starts // 1000).tolist(), (intervals.ends // 1000).tolist(), strict=True))


def gaps(text: str) -> list[tuple[object, ...]]:
    return sorted(us(annotate(drawn_trace(text)), "idle", "start_ns", "end_ns", "cause"))


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        *(
            (name, True)
            for name in ("cudaStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpy", "hipMemcpy2D")
        ),
        *(
            (name, True)
            for name in ("cuMemcpyHtoD_v2", "cuMemcpyAsyncDtoH", "cuStreamWaitValue32", "urQueueFinish")
        ),
        *((name, True) for name in ("urEventWait", "cudaMemcpy3D", "wait: float(x)", "Buffer::Await")),
        *(
            (name, False)
            for name in ("cudaMemcpyAsync", "cuMemcpyDtoD", "cudaLaunchKernel", "xurQueueFinish")
        ),
    ],
)
def test_calls_that_block(name: str, is_one: bool) -> None:
    assert blocks(name) is is_one


def test_threads_that_launch_kernels_pace_the_device_and_others_do_not() -> None:
    text = """
        main     |  0 100 | ProfilerStep#1
        main     |  1   2 | aten::mm
        autograd |  0   2 | {call}           | corr=1
        autograd |  5  60 | cudaStreamSynchronize
        stream 7 |  2  30 | {work}           | corr=1
        stream 7 | 90 100 | b
    """
    paced = gaps(text.format(call="cudaLaunchKernel", work="a"))
    copied = gaps(text.format(call="cudaMemcpyAsync", work="Memcpy HtoD"))
    assert (30, 60, "synchronization") in paced
    assert [gap for gap in copied if gap[2] == "synchronization"] == []


@pytest.mark.parametrize(("name", "cause"), [("infeed", "data"), ("outfeed", "host"), ("other", "launch")])
def test_a_device_waits_in_a_program_for_the_host(name: str, cause: str) -> None:
    found = gaps(f"""
        main     |  0 100 | ProfilerStep#1
        main     |  0   2 | cudaLaunchKernel | corr=1
        stream 7 |  2  30 | a                | corr=1
        stream 7 | 30  60 | {name}.3         | cat=sync
        stream 7 | 60 100 | b                | corr=1
    """)
    assert (30, 60, cause) in found


def test_a_launch_in_what_sets_up_has_launched_nothing_until_that_ends() -> None:
    """The second launch lies in a long call that loads a module; the third in none."""
    trace = link_launches(
        drawn_trace("""
        main     |    0 3000 | setup
        main     | 1000 1010 | cudaLaunchKernel | corr=1
        main     | 3500 3510 | cudaLaunchKernel | corr=2
        stream 7 | 3100 3200 | a                | corr=1
        stream 7 | 4000 4100 | b                | corr=2
    """)
    )
    work = np.flatnonzero(trace["tracks"]["device"][trace.events["track"]] >= 0)
    assert spans(idle._pending_times(trace, work, np.array([0]))) == [(3000, 3100), (3500, 4000)]
    assert spans(idle._pending_times(trace, work, np.zeros(0, np.int64))) == [(1000, 3100), (3500, 4000)]
    inner = link_launches(
        drawn_trace("""
        main     |    0 3000 | cudaLaunchKernel | corr=1
        main     |   10 2900 | cuModuleLoadData
        stream 7 | 3100 3200 | a                | corr=1
    """)
    )
    assert spans(idle._pending_times(inner, np.array([2]), np.array([1]))) == [(2900, 3100)]


def test_work_that_communicates_or_copies_counts_where_nothing_else_runs() -> None:
    trace = drawn_trace("""
        stream 7 |  0 10 | a
        stream 8 |  5 20 | ncclDevKernel | cat=communication
        stream 7 | 20 30 | Memcpy HtoD
        stream 8 | 25 40 | Memset
        stream 7 | 35 50 | b
    """)
    work = np.arange(5)
    computing, communicating = busy_times(trace, work)
    assert (spans(computing), spans(communicating)) == ([(0, 10), (20, 50)], [(10, 20)])
    assert spans(copy_times(trace, work)) == [(20, 35)]


def of_two_devices() -> Trace:
    trace = drawn_trace("""
        stream 0 |  0 10 | a
        stream 1 | 20 30 | b
        stream 2 | 35 35 | nothing
        stream 3 |  0 99 | ranges | cat=annotation
    """)
    trace = trace.with_table(trace["tracks"].with_columns(device=[4, 2, 7, 9], rank=[0, 0, 0, 0]))
    steps = {"window_start_ns": [0], "window_end_ns": [40_000]}
    gaps = {"device": [4, 2, 2, 7], "start_ns": [0, 0, 20_000, 0], "end_ns": [30_000, 10_000, 25_000, 39_000]}
    return trace.with_table(Table(STEPS, steps)).with_table(Table(IDLE, gaps))


def test_the_busiest_device_idles_least() -> None:
    trace = of_two_devices()
    assert busiest_device(trace, 0) == 2
    assert busiest_device(trace, 1) == -1
    assert working_devices(trace, 0, Intervals([0], [40_000])) == [2, 4, 7]
    assert working_devices(trace, 0, Intervals([0], [15_000])) == [4]
    assert working_devices(trace, 1, Intervals([0], [40_000])) == []


def test_devices_that_idle_in_turns() -> None:
    cause = Text.constant("launch", 3)
    rows = {"device": [0, 0, 1], "start_ns": [0, 20, 5], "end_ns": [10, 30, 25], "cause": cause}
    assert turns(Table(IDLE, rows), 30) == 20 - 10
    assert turns(Table(IDLE, rows), 100) == 0  # it works at once with the other


@pytest.mark.parametrize(
    ("lengths", "names", "usual"),
    [
        ([], "", []),
        ([10, 10, 50], "aab", [10, 10, 50]),
        ([50, 50, 10], "aab", [50, 50, 18]),
        ([10] * 19 + [0], "a" * 20, [10] * 20),  # the tenth percentile
    ],
)
def test_the_usual_launch_is_that_of_calls_of_its_name(
    lengths: list[int], names: str, usual: list[float]
) -> None:
    lines = [
        f"main | {100 * row} {100 * row + length} | {name}"
        for row, (length, name) in enumerate(zip(lengths, names, strict=True))
    ]
    trace = drawn_trace("\n".join([*lines, "main | 9000 9001 | end"]))
    found = usual_launch_ns(trace, np.arange(len(lengths)))
    assert found.tolist() == [each * 1000 for each in usual]


def queue(
    depth: int, slow: dict[int, int], names: dict[int, str] | None = None, note: bool = False
) -> list[int]:
    """The launches, by number, that wait for room: each of 10 us, or slow, of works of 100 us."""
    lines, now = [], 0
    for number in range(depth):
        end = now + slow.get(number, 10)
        name = (names or {}).get(number, "cudaLaunchKernel")
        lines.append(f"main | {now} {end} | {name} | corr={number}")
        lines.append(f"stream 7 | {20 + 100 * number} {120 + 100 * number} | k | corr={number}")
        if note and number in slow:
            lines.append(f"main | {now} {end} | Command Buffer Full | cat=other")
        now = end
    trace = link_launches(drawn_trace("\n".join(lines)))
    work = trace["launches"]["device_event"]
    ids = trace.events["correlation"][full_queue_launches(trace, work)]
    return ids.tolist()


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ((700, {690: 30}), [690]),  # three times as long while the queue holds most
        ((700, {690: 20}), []),
        ((700, {600: 90}), [600]),  # nine times as long while it holds many
        ((700, {600: 80}), []),
        ((700, {600: 30}), []),  # many, and not most
        ((400, {390: 90}), []),  # not many
        ((400, {390: 90}, None, True), [390]),  # but the trace says so
        ((4, {0: 90}, None, True), [0]),
        ((700, {690: 30}, {690: "cudaMemcpyAsync"}), []),  # a copy takes long by itself
        ((700, {690: 30}, dict.fromkeys([*range(10, 700, 10)], "cudaMemcpyAsync")), []),
        ((700, {690: 30}, dict.fromkeys([*range(10, 700, 10)], "cudaMemsetAsync")), [690]),
    ],
)
def test_launches_wait_where_the_queue_is_full(arguments: tuple[Any, ...], found: list[int]) -> None:
    assert queue(*arguments) == found


@pytest.mark.parametrize(("until_ns", "found"), [(40_000, [1]), (39_999, []), (-1, [])])
def test_launches_wait_also_for_work_that_no_file_shows(
    until_ns: int, found: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "unrecorded_work_end", lambda trace, rank: {0: until_ns}[rank])
    assert queue(4, {1: 30}) == found


def test_without_launches_no_queue_is_full() -> None:
    trace = link_launches(drawn_trace("stream 7 | 0 9 | k"))
    assert len(full_queue_launches(trace, np.array([0]))) == 0


def test_the_loop_is_blocked_by_waits_and_by_copies_that_end_within_their_call() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0   2 | cudaLaunchKernel      | corr=1
        main     | 10  20 | cudaStreamSynchronize
        main     | 30  50 | cudaMemcpyAsync       | corr=2
        main     | 60  62 | cudaMemcpyAsync       | corr=3
        main     | 70  80 | sync_by_name          | cat=annotation
        main     | 100 300 | aten::mm
        watchdog |  0  99 | cudaEventSynchronize
        stream 7 |  3   9 | a                     | corr=1
        stream 7 | 35  50 | Memcpy DtoH           | corr=2
        stream 7 | 63  64 | Memcpy DtoH           | corr=3
    """)
    )
    work = trace["launches"]["device_event"]
    assert spans(time_blocked(trace, work)) == [(10, 20), (30, 50)]


def test_loading_is_that_of_ranges_where_there_are_some() -> None:
    loads = "enumerate(DataLoader)#x"
    trace = drawn_trace(f"""
        main   |  0 10 | {loads} | cat=annotation
        main   | 12 14 | aten::stack
        main   | 20 30 | {loads} | cat=annotation
        main   | 50 60 | aten::cat
        worker |  0  5 | aten::stack
    """)
    trace = trace.with_events(stage=Text.of(["data_loading"] * 5))
    runs = {"stage": ["data_loading", "data_loading", "forward"], "start_ns": [0, 40_000, 70_000]}
    trace = trace.with_table(Table(STAGE_RUNS, {**runs, "end_ns": [30_000, 60_000, 80_000]}))
    assert spans(data_loading_times(trace)) == [(0, 10), (12, 14), (20, 30), (40, 60)]


def host() -> tuple[Trace, Table]:
    """A step on the CPU in which one thread waits for a collective that another runs."""
    trace = drawn_trace("""
        main   |  0 10 | aten::mm
        main   | 10 12 | stepscope.module: net | cat=cpu_op
        main   | 20 40 | c10d_functional::wait_tensor
        main   | 50 60 | aten::stack
        main   | 70 75 | aten::next_step
        gloo   | 15 35 | gloo:all_reduce | cat=communication
        pool   | 30 33 | aten::add
        main   | 80 90 | AddBackward0
    """)
    stage = [None] * 8
    names = list(trace.events.text("name"))
    stage[names.index("aten::stack")] = "data_loading"
    step = [0] * 8
    step[names.index("aten::next_step")] = 1
    trace = trace.with_events(stage=Text.of(stage), step=step)
    runs = {"stage": ["backward"], "start_ns": [80_000], "end_ns": [95_000]}
    steps = Table(STEPS, {"step": [0], "start_ns": [0], "end_ns": [100_000]})
    return trace.with_table(Table(STAGE_RUNS, runs)), steps


def test_the_hosts_own_time_is_what_no_thread_works() -> None:
    trace, steps = host()
    assert spans(python_time(trace, 0, steps)) == [(10, 15), (40, 50), (60, 80), (95, 100)]
    assert spans(busy_time(trace, 0, steps)) == [(0, 10), (30, 33), (50, 60), (80, 90)]
    assert spans(exposed_communication(trace, 0, steps)) == [(15, 30), (33, 35)]
    for of_none in (python_time, busy_time, exposed_communication):
        found = of_none(trace, 1, steps)
        assert spans(found) == ([(0, 100)] if of_none is python_time else [])


def test_causes_are_unknown_where_clocks_differ_or_the_cpu_is_not_shown() -> None:
    steps = Table(STEPS, {"start_ns": [0], "end_ns": [100_000], "window_end_ns": [100_000]})
    bare = link_launches(drawn_trace("stream 7 | 0 9 | a\nstream 7 | 50 60 | b")).with_table(steps)
    shown = link_launches(drawn_trace("main | 0 9 | aten::mm\nstream 7 | 50 60 | b")).with_table(steps)

    def unknown(trace: Trace, gap_us: int) -> set[str]:
        return {IDLE_CAUSES[code] for code in idle._unknown_causes(trace, np.array([gap_us * 1000])).tolist()}

    assert unknown(bare, 50) == {"host"}
    assert unknown(shown, 50) == set()
    lost = shown.with_warnings([("work_missing", "some", 1)])
    assert unknown(lost, 50) == {*IDLE_CAUSES} - {"communication"}


# -- costs that are paid once


def trace_of(*lengths: dict[str, float]) -> Trace:
    """Calls of so many ms in each of some steps of 100 ms."""
    lines = []
    for step, calls in enumerate(lengths):
        lines.append(f"main | {100000 * step} {100000 * (step + 1)} | ProfilerStep#{step}")
        now = 100000 * step
        for name, ms in calls.items():
            lines.append(f"main | {now} {now + 1000 * ms} | {name}")
            now += round(1000 * ms) + 10
    trace = drawn_trace("\n".join(lines))
    table = {"step": range(len(lengths)), "start_ns": [10**8 * n for n in range(len(lengths))]}
    steps = Table(STEPS, {**table, "end_ns": [10**8 * (n + 1) for n in range(len(lengths))]})
    step = trace.events["start_ns"] // 10**8
    return trace.with_table(steps).with_events(step=step)


@pytest.mark.parametrize(
    ("lengths", "shares", "in_one"),
    [
        ([{"a": 10}, {"a": 10}, {"a": 10}], {"a": 1.0}, set()),
        ([{"a": 10}, {"a": 1}, {"a": 1}], {"a": 1 / 3}, {"a"}),  # a tenth is next to nothing
        ([{"a": 10}, {"a": 1.1}, {}], {"a": 2 / 3}, set()),
        ([{"a": 10, "b": 5}, {"b": 5}, {}], {"a": 1 / 3, "b": 2 / 3}, {"a"}),
        ([{"a": 10}, {}], {"a": 0.5}, set()),  # two steps
        ([{"a": 10}], {"a": 0.0}, set()),
    ],
)
def test_the_share_of_steps_that_pay_and_names_that_one_step_pays(
    lengths: list[dict[str, float]], shares: dict[str, float], in_one: set[str]
) -> None:
    trace = trace_of(*lengths)
    names = trace.events.text("name")
    rows = np.flatnonzero(names.where(lambda name: name in "ab"))
    each = one_off_costs._per_step(trace, 0, rows)
    paying, alone = one_off_costs._share_paying(each), one_off_costs._in_one_step(each)
    found = {name: float(paying[names.values.index(name)]) for name in shares}
    assert found == pytest.approx(shares)
    assert {name for name, one in zip(names.values, alone, strict=True) if one} == in_one


def test_calls_before_the_first_launch_and_after_all_work_are_at_an_edge() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0  1 | before
        main     | 10 11 | cudaLaunchKernel | corr=1
        main     | 10 12 | at
        main     | 30 31 | last
        main     | 40 41 | after
        stream 7 | 20 40 | k | corr=1
    """)
    )
    names = trace.events.text("name")
    rows = np.flatnonzero(names.mask("before", "at", "last", "after"))
    found = one_off_costs._at_an_edge(trace, rows, trace["launches"]["device_event"])
    assert {names[row]: bool(one) for row, one in zip(rows.tolist(), found, strict=True)} == {
        **{"before": True, "at": False, "last": False, "after": True}
    }
    assert not one_off_costs._at_an_edge(trace, rows, np.zeros(0, np.int64)).any()


def test_events_inside_of_costs_and_their_work_are_part_of_them() -> None:
    trace = link_launches(
        drawn_trace("""
        main     |  0 20 | aten::conv
        main     |  2  4 | cudaLaunchKernel | corr=1
        main     | 30 34 | cudaLaunchKernel | corr=2
        stream 7 | 10 12 | a | corr=1
        stream 7 | 40 42 | b | corr=2
    """)
    )
    calls = np.array([0])
    work = one_off_costs._work_of(trace, calls)
    assert work.tolist() == [2]
    assert one_off_costs._work_of(trace, calls[:0]).tolist() == []
    inside = one_off_costs.inside(trace, one_off_costs.OneOffCosts(calls, work))
    assert np.flatnonzero(inside).tolist() == [0, 1, 2]


def test_a_step_that_warms_up_counts_unless_typical_ones_are_asked_for() -> None:
    ends = np.cumsum([400, 100, 100, 50])
    columns = {
        "step": [4, 5, 6, 4],
        "rank": [0, 0, 0, 1],
        "start_ns": ends - [400, 100, 100, 50],
        "end_ns": ends,
    }
    trace = Trace({"steps": Table(STEPS, columns)})
    assert one_off_costs._numbers(trace, 0).tolist() == [4, 5, 6]
    assert one_off_costs._numbers(trace, 0, steady=True).tolist() == [5, 6]
    assert one_off_costs._numbers(trace, 1).tolist() == [4]


@pytest.mark.parametrize(
    ("memory", "call", "copy", "is_blocked"),
    [
        ("Pageable -> Device", (0, 150), (40, 160), True),  # it returns when all is staged
        ("Pageable -> Device", (0, 95), (40, 100), False),  # as short as a launch
        ("Pageable -> Device", (0, 110), (80, 160), False),  # less than half of the copy
        ("Pinned -> Device", (0, 150), (40, 160), False),
        ("Pinned -> Device", (0, 160), (40, 160), True),
    ],
)
def test_the_loop_is_blocked_until_a_copy_is_staged(
    memory: str, call: tuple[int, int], copy: tuple[int, int], is_blocked: bool
) -> None:
    text = f"""
        main     | {call[0]} {call[1]} | cudaMemcpyAsync | corr=1
        main     | 200 300 | aten::mm
        stream 7 | {copy[0]} {copy[1]} | Memcpy HtoD ({memory}) | corr=1
    """
    trace = link_launches(drawn_trace(text))
    work = trace["launches"]["device_event"]
    assert spans(time_blocked(trace, work)) == ([call] if is_blocked else [])
