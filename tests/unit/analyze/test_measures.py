"""What `Measures` and `EagerCalls` say of small recordings: times per step, shares, idle time and costs."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from drawn_findings import A100, repeated

from stepscope.analyze import RuleContext
from stepscope.analyze.event_search import EagerCalls, EventSearch
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank
from stepscope.trace.intervals import Intervals

NODE = "autograd::engine::evaluate_function:"
DEVICE = """
    main     |  10  40 | aten::mm | seq=1
    main     |  12  16 | cudaLaunchKernel | corr=1
    stream 7 |  20 220 | sgemm | corr=1
    main     |  50  70 | aten::relu
    main     |  52  56 | cudaLaunchKernel | corr=2
    stream 8 | 200 260 | relu_kernel | corr=2
    main     |  80  90 | aten::mm
    worker   |  60  85 | aten::copy_
    main     | 300 400 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main     | 310 330 | aten::mm
    main     | 312 316 | cudaLaunchKernel | corr=3
    stream 7 | 320 420 | sgemm | corr=3
    main     | 500 510 | Optimizer.step#SGD.step
"""


def context(text: str, **metadata: Any) -> RuleContext:
    return RuleContext(annotate(drawn_trace(text, **metadata)))


@pytest.fixture
def device() -> RuleContext:
    """Two steps of 1 ms; work of two streams."""
    return context(repeated(DEVICE), devices=A100)


@pytest.mark.parametrize(
    ("name", "ms", "calls", "cost_ms", "longer_ms", "part", "share"),
    [
        ("aten::mm", 0.060, 3, 0.36, 0.300, 0.060, 0.060),  # with its kernels and the calls in it
        ("cudaLaunchKernel", 0.012, 3, 0.372, 0.360, 0.012, 0.012),
        ("sgemm|relu_kernel", 0.360, 3, 0.372, 0.360, 0.340, 0.360),  # two streams at once for 20 us
        ("MmBackward0", 0.100, 1, 0.200, 0.100, 0.100, 0.100),
        ("aten::(copy_|relu)", 0.045, 2, 0.105, 0.060, 0.035, 0.045),  # two threads at once for 10 us
    ],
)
def test_events_in_a_step(
    device: RuleContext,
    name: str,
    ms: float,
    calls: float,
    cost_ms: float,
    longer_ms: float,
    part: float,
    share: float,
) -> None:
    rows, measures = device.search.find(name), device.measures
    assert measures.ms(rows) == pytest.approx(ms)
    assert measures.calls(rows) == calls
    assert measures.cost_ms(rows) == pytest.approx(cost_ms)
    assert measures.longer_side_ms(rows) == pytest.approx(longer_ms)
    assert measures.part_of_step(rows) == pytest.approx(part)
    assert measures.part_of_step(rows, 0.01) == pytest.approx(0.01)
    assert measures.part_of_step(rows, 9.0) == pytest.approx(part)
    assert measures.share(rows) == pytest.approx(share)
    assert measures.spans(rows).total() == pytest.approx(2e6 * part)


def test_what_events_cause_on_a_device_counts_for_the_innermost(device: RuleContext) -> None:
    search = device.search
    rows = search.find("^aten::|MmBackward0", on_device=False)
    caused = device.measures.caused_ns(rows)
    names = [search.name(row) for row in rows.tolist()]
    half = len(rows) // 2
    expected = {"aten::mm": [200, 0, 100], "aten::relu": [60], "aten::copy_": [0]}
    for name, times in expected.items():
        assert [ns / 1000 for one, ns in zip(names, caused.tolist(), strict=True) if one == name] == times * 2
    assert half == 6


def test_without_a_device_an_event_causes_itself_without_what_is_repeated_or_exchanged() -> None:
    text = f"""
        main | 10 40 | aten::mm | seq=1
        main | 100 400 | {NODE} MmBackward0 | seq=1 fwd=1
        main | 200 240 | c10d::allreduce_ | cat=communication
        main | 210 230 | aten::add
        main | 500 510 | Optimizer.step#SGD.step
    """
    found = context(repeated(text))
    rows = found.search.find("MmBackward0|allreduce")
    assert found.measures.caused_ns(rows).tolist() == [300_000, 40_000] * 2
    assert found.measures.caused_ns(rows[::2]).tolist() == [260_000] * 2


@pytest.mark.parametrize(
    ("thread", "longer", "steady_ms"), [("pin", 0, 9), ("pin", 400, 9), ("main", 4000, 9)]
)
def test_a_delay_takes_no_more_of_a_step_than_the_step_is_longer(
    thread: str, longer: int, steady_ms: float
) -> None:
    """As of a thread that pins memory ahead of the loop, in one step."""
    lines, at = [], 0
    for step in range(4):
        end = at + 9000 + longer * (step == 1)
        lines += [f"main | {at} {end} | ProfilerStep#{step}", f"main | {at + 10} {at + 900} | aten::mm"]
        lines += [f"{thread} | {at + 1000} {at + 1100 + 4000 * (step == 1)} | aten::pin_memory"]
        at = end
    assert context("\n".join(lines)).measures.steady_ms == pytest.approx(steady_ms)


def test_what_the_cpu_does_counts_where_the_device_is_a_step_behind() -> None:
    """Windows of 90 us begin when work from before the steps ends, after half of what the CPU does."""
    lines = ["main | 0 1 | cudaLaunchKernel | corr=9", "stream 7 | 5 195 | sgemm | corr=9"]
    for step in range(2):
        at, begin = 50 + 100 * step, 195 + 90 * step
        lines += [
            f"main | {at} {at + 100} | ProfilerStep#{step}",
            f"main | {at} {at + 95} | ## forward ##",
            f"main | {at + 10} {at + 30} | aten::relu",
            f"main | {at + 12} {at + 14} | cudaLaunchKernel | corr={2 * step + 1}",
            f"main | {at + 40} {at + 42} | cudaLaunchKernel | corr={2 * step + 2}",
            f"stream 7 | {begin} {begin + 10} | relu | corr={2 * step + 1}",
            f"stream 7 | {begin + 10} {begin + 90} | sgemm | corr={2 * step + 2}",
        ]
    found = context("\n".join(lines))
    rows = found.search.find("relu")
    assert len(rows) == 4
    assert found.measures.steady_ms == pytest.approx(0.09)
    assert found.measures.longer_side_ms(rows) == pytest.approx(0.02)
    assert found.measures.part_of_step(rows) == pytest.approx(20 / 90)
    assert found.measures.share_of_stage("forward") == 1.0


def test_lengths_and_facts(device: RuleContext) -> None:
    measures = device.measures
    assert (measures.step_ms, measures.steady_ms, measures.run_ms) == (1.0, 1.0, 0.0)
    assert [measures.is_small(ms) for ms in (LEAST_SHARE, 0.04999)] == [False, True]
    assert measures.device_facts() == A100[0]
    assert measures.has_device
    assert measures.share_of_stage("backward") == pytest.approx(0.1)
    assert measures.share_of_stage("evaluation") == 0.0
    assert measures.stage_spans("backward").starts.tolist() == [300_000, 1_300_000]
    assert measures.stage_spans("backward").ends.tolist() == [400_000, 1_400_000]
    assert measures.wait_ms() == 0


def test_idle_time(device: RuleContext) -> None:
    """The device works from 20 to 260 and from 320 to 420 of 1,000 us."""
    measures = device.measures
    causes = {cause: round(measures.idle_ms(cause), 6) for cause in measures.busiest_device.idle_ms}
    assert sum(causes.values()) == pytest.approx(0.660)
    assert measures.idle_ms("host", "launch") == pytest.approx(
        measures.idle_ms("host") + measures.idle_ms("launch")
    )
    assert measures.idle_share("host") == pytest.approx(measures.idle_ms("host"))
    assert measures.idle_ms("nothing") == 0.0
    spans = Intervals(np.array([250_000, 1_250_000]), np.array([330_000, 1_330_000]))
    assert measures.recurring_ms(spans.intersect(measures.idle())) == pytest.approx(0.060)
    assert measures.share_of_window(spans) == pytest.approx(0.080)
    assert measures.idle("host").total() / 2e6 == pytest.approx(measures.idle_ms("host"))


def test_a_cpu_has_no_device() -> None:
    measures = context(repeated("main | 10 40 | aten::mm")).measures
    assert not measures.has_device
    assert measures.busiest_device is None
    assert (measures.idle_ms("host"), measures.idle_share("host")) == (0.0, 0.0)
    assert measures.device_facts() == {}


def gap(us: float, call_us: float = 0) -> str:
    """A device that is idle for so long, in which a call takes some time."""
    end = 110 + us
    return f"""
        main     | 0 {end + 100} | ProfilerStep#0
        main     | 5 6 | cudaLaunchKernel | corr=1
        stream 7 | 10 110 | a | corr=1
        main     | 115 {115 + call_us} | cudaMalloc
        main     | {end - 2} {end - 1} | cudaLaunchKernel | corr=2
        stream 7 | {end} {end + 100} | b | corr=2
    """


@pytest.mark.parametrize(
    ("us", "call_us", "counted_us"),
    [
        (200, 0, 200),
        (50_001.9, 0, 50_001.9),  # the last 2 us are after a launch
        (50_002, 0, 0),  # the CPU launches nothing for other reasons
        (5_000, 999.9, 5_000),
        (5_000, 1_000, 4_000),  # the call allocates
    ],
)
def test_gaps_of_slow_launches(us: float, call_us: float, counted_us: float) -> None:
    gaps = context(gap(us, call_us)).measures.launch_gaps()
    inside = gaps.intersect(Intervals(np.array([110_000]), np.array([round(1000 * (110 + us))])))
    assert inside.total() / 1000 == pytest.approx(counted_us, abs=3)


@pytest.mark.parametrize(("us", "counted_us"), [(99.9, 99.9), (100, 0)])
def test_work_that_starts_long_after_its_launch_waits_for_another_stream(
    us: float, counted_us: float
) -> None:
    text = f"""
        main     | 0 400 | ProfilerStep#0
        main     | 5 6 | cudaLaunchKernel | corr=1
        main     | 7 8 | cudaLaunchKernel | corr=2
        stream 7 | 10 110 | a | corr=1
        stream 7 | {110 + us} {400} | b | corr=2
    """
    gaps = context(text).measures.launch_gaps()
    inside = gaps.intersect(Intervals(np.array([110_000]), np.array([round(1000 * (110 + us))])))
    assert inside.total() / 1000 == pytest.approx(counted_us)


@pytest.mark.parametrize(
    ("spent", "steadiness"),
    [
        ([10, 90], 1.0),  # two steps do not show what is typical
        ([0, 0, 0], 1.0),
        ([10, 10, 70], 10 / 30),
        ([10, 20, 60], (10 + 20 + 20) / 90),
        ([10] * 9 + [60], 100 / 150),
        ([10] * 18 + [60, 65], 200 / 305),  # of 20 steps, two
        ([10] * 8 + [60, 65], (80 + 120) / 205),  # of 10 steps, one
    ],
)
def test_what_recurs(spent: list[float], steadiness: float) -> None:
    lines = [f"main | {1000 * n} {1000 * n + 1000} | ProfilerStep#{n}" for n in range(len(spent))]
    lines += [f"main | {1000 * n + 5} {1000 * n + 5 + us} | aten::sort" for n, us in enumerate(spent) if us]
    found = context("\n".join(lines))
    rows = found.search.find("aten::sort")
    assert found.measures.steadiness(rows) == pytest.approx(steadiness)
    gaps = found.measures.spans(rows)
    assert found.measures.recurring_ms(gaps) == pytest.approx(steadiness * sum(spent) / len(spent) / 1000)


def test_stalls_are_python_of_1_ms() -> None:
    text = "main | 0 5000 | ProfilerStep#0\nmain | 1000 2000 | aten::mm\nmain | 2999.999 4000 | aten::relu"
    stalls = context(text).measures.stalls()
    assert list(zip(stalls.starts.tolist(), stalls.ends.tolist(), strict=True)) == [
        (0, 1_000_000),
        (4_000_000, 5_000_000),
    ]


def test_each_rank_is_measured_by_itself() -> None:
    """Rank 1 takes longer, and its device works longer, too."""
    ranks = [
        of_rank(annotate(drawn_trace(repeated(DEVICE.replace("220 | sgemm", f"{end} | sgemm"), us))), number)
        for number, (us, end) in enumerate(((1000, 120), (1200, 220)))
    ]
    job = concat(ranks)
    for rank, (us, busy_ms) in enumerate(((1000, 0.26), (1200, 0.34))):
        measures = RuleContext(job, rank).measures
        assert (measures.step_ms, measures.summary.steps.mean_ms) == (us / 1000, us / 1000)
        assert measures.busiest_device.computing_ms == pytest.approx(busy_ms)
        assert measures.ms(measures._search.find("sgemm|relu_kernel")) == pytest.approx(busy_ms + 0.02 * rank)
    assert [EventSearch(job, *one).rank for one in ((), (0,), (1,), (None, 0), (None, 1), (0, 1))] == [
        1,
        0,
        1,
        0,
        1,
        0,
    ]
    assert [EventSearch(job, *one).requested_rank for one in ((), (0,), (None, 1))] == [None, 0, None]


# -- eager calls

CALLS = f"""
    main   | 10 20 | aten::mul | seq=1
    main   | 25 45 | aten::add | seq=2
    main   | 26 30 | aten::empty
    main   | 100 110 | aten::mul
    worker | 30 40 | aten::copy_
    main   | 500 530 | {NODE} AddBackward0 | seq=2 fwd=1
    main   | 505 515 | aten::sum
    main   | 540 560 | {NODE} MulBackward0 | seq=1 fwd=1
"""


def eager(text: str = repeated(CALLS)) -> EagerCalls:
    return EagerCalls(EventSearch(annotate(drawn_trace(text))))


def test_calls_cost_until_the_next_of_their_thread_at_most_20_us_more() -> None:
    calls = eager()
    names = calls._events.text("name").take(calls.rows)
    costs = dict(
        zip(
            zip(names, calls._events["start_ns"][calls.rows].tolist(), strict=True),
            calls.cost_ns.tolist(),
            strict=True,
        )
    )
    first = {
        name: cost // 1000
        for (name, start), cost in costs.items()
        if start < 1_000_000 and name != "aten::mul"
    }
    assert first == {
        "aten::add": 40,
        "aten::copy_": 30,  # the next one is a step later
        f"{NODE} AddBackward0": 40,
        f"{NODE} MulBackward0": 40,
    }
    assert (
        sorted(cost for (name, _), cost in costs.items() if name == "aten::mul")
        == [15_000] * 2 + [30_000] * 2
    )
    assert calls.ms(np.ones(len(calls.rows), np.bool_)) == pytest.approx(0.175)
    assert calls.ms(np.array([0])) == pytest.approx(0.015 / 2)


def test_calls_of_backward_and_those_of_forward() -> None:
    calls = eager()
    names = list(calls._events.text("name").take(calls.rows))
    pairs = [(names[call], names[one]) for call, one in enumerate(calls.forward.tolist()) if one >= 0]
    assert pairs == [(f"{NODE} AddBackward0", "aten::add"), (f"{NODE} MulBackward0", "aten::mul")] * 2
    adds = np.array([name == "aten::add" for name in names])
    both = calls.with_backward(adds)
    assert [name for name, chosen in zip(names, both.tolist(), strict=True) if chosen] == [
        "aten::add",
        f"{NODE} AddBackward0",
    ] * 2


def test_events_are_in_the_calls_around_them() -> None:
    calls = eager()
    rows = calls._search.find("^aten::(empty|sum)$")
    names = list(calls._events.text("name").take(calls.rows[calls.around(rows)]))
    assert names == ["aten::add", f"{NODE} AddBackward0"] * 2
    assert calls.around(calls._search.find("ProfilerStep")).tolist() == []


def loop(between: list[int], gap_us: float = 5) -> tuple[EagerCalls, Any]:
    """Chosen calls with so many others between them; and the mask of the loop's calls."""
    lines, at = ["main | 0 9000 | ProfilerStep#0"], 10.0
    for count in [*between, -1]:
        for name in ["aten::select", *["aten::mul"] * max(count, 0)]:
            lines.append(f"main | {at} {at + 5} | {name}")
            at += 5 + gap_us
    lines.append(f"main | {at} {at + 5} | aten::relu")
    calls = eager("\n".join(lines))
    return calls, calls.of_loops(calls._search.find("select"))


@pytest.mark.parametrize(
    ("between", "chosen"),
    [
        ([3, 3, 3], "SMMMSMMMSMMMS-"),
        ([3, 3, 15, 3], "SMMMSMMMSMMMMMMMMMMMMMMMSMMMS-"),  # 4 times as many as usual
        ([3, 3, 16, 3], "SMMMSMMMS----------------SMMMS-"),
        ([0, 0, 2, 0], "SSSMMSS-"),  # 2 that fill
        ([0, 0, 0, 4, 0], "SSSS----SS-"),
    ],
)
def test_a_loop_goes_on_where_not_many_more_calls_lie_between(between: list[int], chosen: str) -> None:
    calls, mask = loop(between)
    names = calls._events.text("name").take(calls.rows)
    letters = {"aten::select": "S", "aten::mul": "M", "aten::relu": "R"}
    assert (
        "".join(letters[name or ""] if inside else "-" for name, inside in zip(names, mask, strict=True))
        == chosen
    )


@pytest.mark.parametrize(("iterations", "inside"), [(64, 64 * 6 + 2), (63, 63 * 2 + 2)])
def test_an_iteration_may_take_two_parts_in_a_row(iterations: int, inside: int) -> None:
    """As `u[i + 1] - u[i]` does, and four other calls; as many layers of a model are no such loop."""
    assert loop([*[0, 4] * iterations, 0])[1].sum() == inside


@pytest.mark.parametrize(("times", "inside"), [(16, 15 * 12 + 2), (15, 15 * 2)])
def test_an_iteration_may_have_two_modules_and_much_between(times: int, inside: int) -> None:
    """Two calls of chosen ones side by side, and ten others before they come again."""
    lines, at = ["main | 0 9000 | ProfilerStep#0"], 10
    for _ in range(times):
        for name, operator in [("first", "linear"), ("second", "linear"), *[("", "mul")] * 10]:
            lines += [f"main | {at} {at + 8} | stepscope.module: {name}"] * bool(name)
            lines.append(f"main | {at + 1} {at + 6} | aten::{operator}")
            at += 10
    children = [{"name": name, "class": "Linear"} for name in ("first", "second")]
    model = {"name": "net", "class": "Net", "children": children}
    calls = EagerCalls(EventSearch(annotate(drawn_trace("\n".join(lines)), model=model)))
    assert calls.of_loops(calls._search.find("linear")).sum() == inside


@pytest.mark.parametrize(
    ("gap_us", "elapsed_us"), [(5, 6 * 5 + 6 * 5), (200, 6 * 5 + 6 * 200), (201, 6 * 5 + 6 * 20)]
)
def test_long_python_between_calls_is_something_else(gap_us: float, elapsed_us: float) -> None:
    calls, _ = loop([0] * 5, gap_us)
    selects = np.array([name == "aten::select" for name in calls._events.text("name").take(calls.rows)])
    assert calls.elapsed_ms(selects) == pytest.approx(elapsed_us / 1000)


def test_the_usual_gap_is_the_median_between_calls_of_two_names() -> None:
    random = np.random.default_rng(1)
    lines, at, gaps = ["main | 0 9000 | ProfilerStep#0"], 10, dict[tuple[str, str], list[int]]()
    names = [f"aten::op{random.integers(4)}" for _ in range(60)]
    for pair in zip(names, [*names[1:], names[-1]], strict=True):
        gap = int(random.integers(1, 90))
        lines.append(f"main | {at} {at + 5} | {pair[0]}")
        gaps.setdefault(pair, []).append(1000 * gap)
        at += 5 + gap
    usual = eager("\n".join(lines))._usual_gaps().tolist()[:-1]
    inner = {pair: sorted(one) for pair, one in gaps.items() if pair != (names[-1],) * 2}
    for place, pair in enumerate(pairwise(names)):
        if pair in inner:
            assert usual[place] == inner[pair][len(inner[pair]) // 2]


# -- search


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"name": "::mm$"}, ["aten::mm"] * 3),
        ({"category": "kernel"}, ["relu_kernel", "sgemm", "sgemm"]),
        ({"category": ("kernel", "runtime"), "stage": "backward"}, ["cudaLaunchKernel", "sgemm"]),
        ({"kind": "gemm"}, ["sgemm", "sgemm"]),
        ({"on_device": True, "stage": "forward"}, ["relu_kernel", "sgemm"]),
        ({"category": "cpu_op", "on_device": True}, []),
        ({"name": "mm", "on_device": False, "category": "cpu_op"}, ["aten::mm"] * 3),
    ],
)
def test_events_are_found_by_what_they_are(
    device: RuleContext, options: dict[str, Any], names: list[str]
) -> None:
    found = device.search.find(**options)
    assert sorted(device.search.name(row) for row in found.tolist()) == sorted(names * 2)


def test_events_in_and_around_others(device: RuleContext) -> None:
    search = device.search
    node = search.find("MmBackward0")

    def names(rows: Any) -> list[str]:
        return sorted({search.name(row) for row in np.flatnonzero(rows).tolist()})

    assert names(search.within(node)) == ["aten::mm", node_name(search, node), "cudaLaunchKernel", "sgemm"]
    assert names(search.holding(search.find("cudaLaunch", inside=node))) == [
        "ProfilerStep#0",
        "ProfilerStep#1",
        "aten::mm",
        node_name(search, node),
        "cudaLaunchKernel",
    ]
    assert len(search.outermost(search.find("aten::mm|MmBackward0|cudaLaunch"))) == 2 * 4
    mms = search.find("aten::mm")
    assert search.backward_of(mms[:1]).tolist() == node[:1].tolist()
    assert names(search.trained()) == sorted(
        {"ProfilerStep#0", "ProfilerStep#1", "aten::mm", node_name(search, node), "cudaLaunchKernel", "sgemm"}
    )
    launches = search.find("cudaLaunch")
    assert {search.name(row) for row in search.operator_of(launches).tolist()} == {"aten::mm", "aten::relu"}
    assert search.operator_of(search.find("ProfilerStep")).tolist() == [-1, -1]
    assert search.is_range(search.find("ProfilerStep|aten::relu")).tolist() == [True, False] * 2


def node_name(search: EventSearch, rows: Any) -> str:
    return search.name(int(rows[0]))


@pytest.mark.parametrize("dims", ["[[2,3],[3]]", "[[2,3],4,[null]]", "null"])
def test_shapes_of_inputs(dims: str) -> None:
    search = EventSearch(
        annotate(drawn_trace(f"main | 0 9 | ProfilerStep#0\nmain | 1 2 | aten::mm | Input_Dims={dims}"))
    )
    expected = {"[[2,3],[3]]": [[2, 3], [3]], "[[2,3],4,[null]]": [[2, 3], [], []], "null": []}
    assert search.each_shapes(search.find("aten::mm"), list) == [expected[dims]]
