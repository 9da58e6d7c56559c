"""What is sent otherwise: P3, BlueConnect, DGC, ZeRO and FSDP, by hand on a step of two modules."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from drawn_steps import V100, changed, graph_of, start_us, step_us
from hypothesis import given
from hypothesis import strategies as st
from test_ddp import MIB, SHAPED

from stepscope.errors import ChangeError
from stepscope.facts.annotate import annotate
from stepscope.graph import Graph, build_graph, select
from stepscope.models.whatif import CHANGES, parse_request, predict
from stepscope.models.whatif.parts.beside_collectives import beside_collectives
from stepscope.models.whatif.parts.gradients import converted
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MODULES
from stepscope.trace.table import Table

fsdp, p3, zero = (CHANGES[name].apply for name in ("fsdp", "p3", "zero"))

# Launched in the first 20 us, on the device one after the other from 20 to 100.
STEP = """
    main     |  {0}  {9} | ProfilerStep#{n}
    main     |  {1}  {4} | ## forward ##
    main     |  {1}  {2} | cudaLaunchKernel | corr={n}1
    main     |  {2}  {3} | cudaLaunchKernel | corr={n}2
    main     |  {4}  {6} | ## backward ##
    main     |  {4}  {5} | cudaLaunchKernel | corr={n}3
    main     |  {5}  {6} | cudaLaunchKernel | corr={n}4
    main     |  {6}  {8} | ## optimizer ##
    main     |  {6}  {7} | cudaLaunchKernel | corr={n}5
"""
DEVICE = """
    stream 7 |  {20} {30} | sgemm_fw_first   | corr={n}1
    stream 7 |  {30} {40} | sgemm_fw_last    | corr={n}2
    stream 7 |  {40} {60} | sgemm_bw_last    | corr={n}3
    stream 7 |  {60} {80} | sgemm_bw_first   | corr={n}4
    stream 7 |  {80} {100}| adam             | corr={n}5
"""
MS = 1048.576  # 1 MiB at a byte a nanosecond, us


def step(number: int, begins: int) -> str:
    """One step of 100 us, its CPU part done in 10."""
    times = {str(n): begins + n for n in range(110)}
    lines = (STEP + DEVICE).replace("{n}", str(number + 1))
    for name, time in times.items():
        lines = lines.replace("{" + name + "}", str(time))
    return lines


def with_modules(graph: Graph, first: int, last: int) -> Graph:
    table = Table(
        MODULES,
        {"parent": [-1, 0, 0], "path": ["", "first", "last"], "parameter_bytes": [first + last, first, last]},
    )
    module = np.full(len(graph), -1)
    for number, name in ((1, "*_first"), (2, "*_last")):
        module[select(graph, name=name)] = number
    return replace(graph.with_tasks(module=module), trace=graph.trace.with_table(table))


@pytest.fixture
def graph() -> Graph:
    return with_modules(graph_of(step(0, 0), devices=V100), 2 * MIB, MIB)


def test_the_step_as_it_is(graph: Graph) -> None:
    assert step_us(graph) == 100
    assert start_us(graph)["sgemm_bw_first"] == 60


# -- p3


def test_slices_are_pushed_and_pulled_over_both_directions_of_the_link(graph: Graph) -> None:
    # Two servers: every second slice is this worker's own, received first and sent then. Sent are
    # the push of slice 1 from 80 on, and the pulls of slices 0 and 2, back to back.
    result = p3(graph, workers=2, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    assert select(result, category="communication").sum() == 6
    assert step_us(result.check()) == pytest.approx(80 + 3 * MS, abs=1)


def test_slices_that_forward_needs_first_overtake(graph: Graph) -> None:
    heavy = with_modules(graph, MIB, 8 * MIB)
    result = p3(heavy, workers=5, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    # Of the eight slices of the last module, ready at 60, the first is this worker's own. The next
    # is being sent when the first module's slice gets ready at 80, which then goes before the rest.
    pushes = [one for one in start_us(result, every=True) if one[0].startswith("push")]
    assert pushes[:3] == [("push 0", 60), ("push 0", 60), ("push 1", pytest.approx(60 + MS, abs=1))]


def test_the_next_steps_forward_waits_for_its_own_slices_only() -> None:
    graph = with_modules(graph_of(step(0, 0) + step(1, 200), devices=V100), MIB, MIB)
    result = p3(graph, workers=2, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    # The first module's slice, ready at 80, is pushed and pulled by 80 + 2 MiB.
    forward = [time for name, time in start_us(result, every=True) if name == "sgemm_fw_first"]
    assert forward[1] == pytest.approx(80 + 2 * MS, abs=1)


def test_latency_delays_each_message_but_not_the_next(graph: Graph) -> None:
    def sent(latency: int) -> float:
        network = {"workers": 2, "bandwidth_gbps": 8, "latency_us": latency}
        return step_us(p3(graph, **network, slice_kb=MS / 50))

    # The last slice's push or pull keeps the link busy until the end, and then arrives.
    assert sent(100) - sent(0) == pytest.approx(100, abs=1)


def test_servers_have_equal_shares_of_the_bytes(graph: Graph) -> None:
    # Slices of 1, 1/2, 1, 1/2 MiB, of which every second one is half as much as every second other.
    uneven = with_modules(graph, 3 * MIB // 2, 3 * MIB // 2)
    result = p3(uneven, workers=2, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    receives = result.tasks["thread"] == result.tasks["thread"].max()
    own, others = (
        result.tasks["bytes"][select(result, name=way) & receives].sum() for way in ("push*", "pull*")
    )
    assert own == pytest.approx(others, abs=MIB // 2)


def test_a_server_receives_a_slice_from_all_workers(graph: Graph) -> None:
    # The first module's slice gets ready last, and is another server's: three others push it over
    # that server's link, and get it back over the same link.
    light = with_modules(graph, MIB, MIB)
    result = p3(light, workers=4, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    assert step_us(result) == pytest.approx(80 + 3 * MS + 3 * MS, abs=1)


# -- blueconnect and dgc, after ddp

DDP = "ddp:workers=4,bandwidth_gbps=8,latency_us=0"


def test_all_reduces_are_split_over_levels(graph: Graph) -> None:
    # Buckets of 1 and 2 MiB. Two within a node at 8 bytes a ns: half of each, up and down; then
    # half of the half between two nodes, at 1 byte a ns for both workers of a node together. The
    # levels overlap for different buckets: the second's part between nodes follows the first's.
    result = changed(graph, DDP, "blueconnect:factors=2x2,gbps=64x8,latency_us=0")
    within, between = MS / 2 / 8, 2 * MS / 4
    first = 60 + within
    turn = first + between  # the first bucket is scattered
    second = max(80 + 2 * within, turn)
    assert start_us(result)["reduce-scatter"] == 60
    # between nodes: 0 up, then the earliest ready, which is 0's all-gather, then bucket 1.
    assert second == turn
    end = turn + between + 2 * between + 2 * between + 2 * within
    assert step_us(result) == pytest.approx(end + 20, abs=2)
    assert step_us(graph, DDP) == pytest.approx(60 + 1.5 * 3 * MS + 20, abs=2)


def test_at_one_switch_all_levels_take_the_same_link(graph: Graph) -> None:
    # Half of each bucket and half of the half, up and down: as much as along a ring.
    result = changed(graph, DDP, "blueconnect:factors=2x2,gbps=8x8,latency_us=0,one_switch=true")
    assert step_us(result) == pytest.approx(step_us(graph, DDP), abs=2)


def test_each_worker_receives_what_all_others_send(graph: Graph) -> None:
    # Of 1 and 2 MiB each worker sends 1 % and its indices to three others, one after the other.
    a_pass, send = MS / 900, 3 * MS * 0.02
    first = 60 + 13 * a_pass + send
    assert step_us(graph, DDP, "dgc:ratio=0.01,workers=4") == pytest.approx(
        max(first, 80) + 2 * (13 * a_pass + send) + 20, abs=2
    )


def test_compressed_gradients_send_less_and_cost_kernels(graph: Graph) -> None:
    # Of a V100's 900 bytes a ns: 12 passes and 1 over 1 and 2 MiB.
    result = changed(graph, DDP, "dgc:ratio=0.01")
    a_pass = MS / 900
    send = 1.5 * MS * 0.02
    first = 60 + 12 * a_pass + send + a_pass
    assert start_us(result)["compress"] == 60
    assert step_us(result) == pytest.approx(max(first, 80) + 2 * (12 * a_pass + send + a_pass) + 20, abs=2)


def test_gradients_in_16_bits_take_half_the_time_and_two_casts(graph: Graph) -> None:
    # Of a V100's 900 bytes a ns: 1.5 times 1 and 2 MiB, before and behind, on the channel.
    result = changed(graph, DDP, "compress")
    a_cast = 1.5 * MS / 900
    first = 60 + a_cast + 0.75 * MS + a_cast
    assert start_us(result)["cast of gradients"] == 60
    assert step_us(result) == pytest.approx(max(first, 80) + 2 * (a_cast + 0.75 * MS + a_cast) + 20, abs=2)


@pytest.mark.parametrize(
    ("name", "given"), [("AllReduce_Sum_bf16_RING_LL", ""), ("AllReduce_RING_LL", "dtype=BFloat16")]
)
def test_what_is_sent_in_16_bits_already_is_left_alone(name: str, given: str) -> None:
    graph = graph_of(f"""
        main     |  0 60 | ProfilerStep#0
        main     | 10 12 | cudaLaunchKernel | corr=7
        stream 7 | 20 40 | ncclDevKernel_{name} | corr=7 {given}
    """)
    with pytest.raises(ChangeError, match="compress: no all-reduce of these steps sends FP32"):
        changed(graph, "compress")


# -- zero and fsdp


def test_shards_of_gradients_are_updated_and_gathered(graph: Graph) -> None:
    # Reduce-scatters of 1 and 2 MiB take half of each with two workers; the update of 20 takes 10;
    # then 3 MiB are gathered.
    result = zero(graph, workers=2, bandwidth_gbps=8, latency_us=0)
    assert step_us(result) == pytest.approx(60 + 1.5 * MS + 10 + 1.5 * MS, abs=2)


@pytest.mark.parametrize(("text", "sent"), [("zero", "all-gather"), ("zero:stage=1,by=torch", "broadcast")])
def test_a_step_that_only_accumulates_gradients_sends_no_parameters(text: str, sent: str) -> None:
    first = "\n".join(
        line for line in step(0, 0).splitlines() if "corr=15" not in line and "optim" not in line
    )
    graph = with_modules(graph_of(first + step(1, 100), devices=V100), MIB, MIB)
    result = changed(graph, f"{text},workers=2" if ":" in text else f"{text}:workers=2")
    names, steps = list(result.tasks.text("name")), result.tasks["step"]
    assert [steps[task] for task, name in enumerate(names) if name == sent] == [2]
    before = [name for task, name in enumerate(names) if name and "reduce" in name and steps[task] == 1]
    assert before  # its gradients are exchanged all the same


@pytest.mark.parametrize("text", ["ddp", "zero", "zero:stage=1,by=torch", "fsdp", "p3"])
def test_of_work_that_is_queued_from_an_earlier_step_nothing_is_sent(text: str) -> None:
    """The device is a step behind, and no shapes tell which gradients are this step's."""
    late = re.compile(r"stream 7 \|\s+(\d+)\s+(\d+)\s*\|")
    lines = "\n".join(step(number, 100 * number) for number in range(3))
    drawn = late.sub(lambda at: f"stream 7 | {int(at[1]) + 120} {int(at[2]) + 120} |", lines)
    trace = annotate(drawn_trace(drawn, devices=V100))
    graph = with_modules(build_graph(trace, steps=(2, 3)), MIB, MIB)
    assert (graph.on_device & (graph.tasks["step"] == 1)).any()
    result = changed(graph, text)
    sends = select(result, category="communication")
    assert set(result.tasks["step"][sends].tolist()) == {2, 3}


def test_units_are_gathered_before_they_are_used(graph: Graph) -> None:
    parameters: dict[str, Any] = {"workers": 2, "bandwidth_gbps": 8, "latency_us": 0}
    result = fsdp(graph, unit_mb=1, **parameters)
    # The first unit (2 MiB) takes 1 MiB's time, the second half of that, begun at once; the first
    # one's kernel runs meanwhile. Backward needs the last unit again: its gather waits until
    # forward of the first has ended.
    gather = MS
    starts = start_us(result)
    assert starts["sgemm_fw_first"] == pytest.approx(gather, abs=1)
    assert starts["sgemm_fw_last"] == pytest.approx(1.5 * gather, abs=1)
    assert starts["sgemm_bw_last"] == pytest.approx(2 * gather, abs=1)
    # The first unit's turn comes when forward has ended; the last one's gradients are scattered
    # behind it, then the first one's; the update of 20 takes 10.
    assert starts["sgemm_bw_first"] == pytest.approx(3 * gather, abs=1)
    assert step_us(result.check()) == pytest.approx(3 * gather + 0.5 * gather + gather + 10, abs=2)


def test_the_third_stage_of_zero_is_fsdp(graph: Graph) -> None:
    third, whole = zero(graph, stage=3, bucket_cap_mb=1), fsdp(graph, unit_mb=1)
    assert start_us(third) == start_us(whole)


def test_modules_are_units(graph: Graph) -> None:
    result = fsdp(graph, unit="last", workers=2)
    # What is no unit, the first module, is kept from forward to backward.
    gathered = result.tasks["bytes"][select(result, name="all-gather*")]
    assert gathered.tolist() == [2 * MIB, MIB, MIB]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("blueconnect", "these steps have no all-reduces; put ddp first"),
        ("dgc", "these steps have no all-reduces; put ddp first"),
        ("compress", "these steps have no all-reduces; put ddp first"),
        ("dgc:ratio=0", "expected ratio above 0 and at most 0.5, found 0.0"),
        ("dgc:workers=1", "dgc: expected at least 2 workers, found 1"),
        ("p3:slice_kb=0", "expected slice_kb of at least 0.1, found 0.0"),
        ("zero:stage=4", "expected stage=1, 2 or 3, found 4"),
        ("zero:stage=3,workers=1", "zero: expected at least 2 workers"),
        ("fsdp:unit=nothing", "no module with parameters matches 'nothing'"),
    ],
)
def test_why_it_does_not_apply(graph: Graph, text: str, reason: str) -> None:
    with pytest.raises(ChangeError, match=reason):
        changed(graph, text)


@pytest.mark.parametrize("name", ["p3", "zero", "fsdp"])
def test_one_worker_is_needed_to_begin_with(graph: Graph, name: str) -> None:
    with pytest.raises(ChangeError, match=f"{name}: these steps communicate already"):
        changed(graph, DDP, name)
    with pytest.raises(ChangeError, match="neither the shapes of gradients nor the sizes"):
        changed(graph_of(step(0, 0)), name)


def test_levels_have_to_fit(graph: Graph) -> None:
    with pytest.raises(ChangeError, match="one bandwidth for each factor, found 4x2 and 10"):
        changed(graph, DDP, "blueconnect:gbps=10")
    for factors in ("four", "2.5x2", "nanx2", "infx2", "0x2"):
        with pytest.raises(ChangeError, match=f"expected factors such as 4x2, found '{factors}'"):
            changed(graph, DDP, f"blueconnect:factors={factors}")
    with pytest.raises(ChangeError, match="expected gbps such as 4x2, found 'nanx1'"):
        changed(graph, DDP, "blueconnect:gbps=nanx1")


def test_without_a_weight_update_there_is_nothing_to_shard() -> None:
    lines = "\n".join(line for line in step(0, 0).splitlines() if "15" not in line)
    graph = with_modules(graph_of(lines.replace("## optimizer ##", "## backward ##")), MIB, MIB)
    with pytest.raises(ChangeError, match="zero: these steps have no weight update"):
        changed(graph, "zero")


def test_gradients_without_modules_know_where_forward_uses_them() -> None:
    graph = graph_of(f"""
        main     |  0 60 | ProfilerStep#0
        main     |  1 10 | ## forward ##
        main     |  1  4 | aten::addmm      | seq=1
        main     |  2  3 | cudaLaunchKernel | corr=1
        main     | 12 40 | ## backward ##
        main     | 12 18 | AddmmBackward0   | seq=1 fwd=1
        main     | 13 14 | cudaLaunchKernel | corr=2
        main     | 19 20 | torch::autograd::AccumulateGrad | {SHAPED.format(MIB // 4)}
        stream 7 | 20 30 | sgemm_forward    | corr=1
        stream 7 | 30 50 | sgemm_backward   | corr=2
        fwdbwd   | arrow | aten::addmm > AddmmBackward0
    """)
    result = p3(graph, workers=2, bandwidth_gbps=8, latency_us=0, slice_kb=MS)
    assert step_us(result) == pytest.approx(50 + 2 * MS, abs=1)


# -- kernels beside a collective


def beside(factor: float, launch: str = "grid=[{n},2,1] block=[64,1,1]", shapes: int = 6) -> Graph:
    """Kernels of several shapes and names, 40 us each; then again, beside a collective, `factor` times.

    `short` is shorter than what can be compared, `other` runs one way only.
    """
    lines, at, calls = ["main | 0 10000 | ProfilerStep#1"], 100.0, 0
    for length in (40.0, 40.0 * factor):
        begins = at
        kernels = [(f"kernel_{n % 2}", length, n + 1) for n in range(shapes)]
        for name, time, blocks in [*kernels, ("short", length / 4, 1), (f"other_{at}", 80.0, 1)]:
            calls += 1
            size = launch.format(n=blocks)
            lines.append(f"main | {calls} {calls + 1} | cudaLaunchKernel | corr={calls}")
            lines.append(f"stream 7 | {at} {at + time} | {name} | corr={calls} {size}")
            at += time
    lines.append("main | 50 51 | cudaLaunchKernel | corr=90")
    lines.append(f"comm 9 | {begins} {at} | ncclDevKernel_AllReduce | corr=90")
    return graph_of("\n".join(lines))


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.05, 1.3, 2.0])
def test_the_recording_shows_how_much_collectives_slow_kernels_down(factor: float) -> None:
    graph = beside(factor)
    found = beside_collectives(graph)
    assert found is not None
    busy = 6 * 40 * factor + 10 * factor + 80
    share = busy / (busy + 6 * 40 + 10 + 80)
    assert tuple(found) == pytest.approx((factor, factor, factor, 6, share), rel=1e-3)
    answer = predict(graph, [parse_request("bandwidth:factor=2", CHANGES)])
    assert f"take {factor:.2f} times as long" in " ".join(answer.assumptions)
    wide = max(CHANGES["bandwidth"].error, share * (factor - 1))
    assert answer.range[0] == pytest.approx(answer.predicted_step_ms * (1 - wide), rel=1e-3)


def test_it_says_nothing_where_the_recording_cannot_show_it() -> None:
    assert beside_collectives(beside(1.5, shapes=4)) is None  # too few
    assert beside_collectives(beside(1.5, launch="")) is None  # sizes of launches were not recorded
    assert beside_collectives(graph_of("main | 0 9 | ProfilerStep#1\nstream 7 | 1 8 | kernel")) is None


Sent = tuple[int | None, float]  # bytes, None if unknown, and us


def sending(
    calls: list[Sent], kernel: str = "ncclDevKernel_AllReduce", more: list[Sent] | None = None
) -> Graph:
    """A step of 100 us, then of collectives one after the other; `more` are all-gathers."""
    lines, at = ["main | 0 100 | ProfilerStep#1"], 100.0
    named = [
        *((kernel, *call) for call in calls),
        *(("ncclDevKernel_AllGather", *call) for call in more or []),
    ]
    for number, (name, size, time) in enumerate(named):
        known = "" if size is None else f"bytes={size}"
        lines.append(f"main | {number} {number + 1} | cudaLaunchKernel | corr={number + 1}")
        lines.append(f"stream 7 | {at:.3f} {at + time:.3f} | {name} | corr={number + 1} {known}")
        at += time
    return graph_of("\n".join(lines))


# Three times the bytes take 1.2 times as long: 90 us, and 10 us for each 100 kB.
LINE: list[Sent] = [(100_000, 100.0), (300_000, 120.0)] * 2


def test_more_bandwidth_leaves_the_fixed_cost_that_recorded_sizes_show() -> None:
    graph = sending(LINE)
    assert step_us(graph) == 100 + 440
    assert (
        step_us(graph, "bandwidth:factor=2") == step_us(graph, "bandwidth:factor=2,latency_us=5") == 540 - 40
    )
    assert step_us(graph, "bandwidth:factor=0.5") == 540 + 80
    answer = predict(graph, [parse_request("bandwidth:factor=2", CHANGES)])
    assert answer.range == pytest.approx((0.9 * 0.5, 1.1 * 0.5))
    # The same for changes that send fewer bytes.
    tasks, nothing = np.flatnonzero(select(graph, category="communication")), np.zeros(4)
    assert step_us(converted(graph, tasks, (0.5, 0), ("cast", "cast"), (nothing, nothing))) == 500


def test_a_negative_fixed_cost_is_refused() -> None:
    """It would make collectives faster than their bytes allow."""
    with pytest.raises(ChangeError, match="expected latency_us of at least 0, found -5"):
        changed(sending([(None, 100.0)]), "bandwidth:latency_us=-5")


def test_each_kind_of_collective_has_its_own_fixed_cost() -> None:
    gathers: list[Sent] = [(100_000, 40.0), (300_000, 100.0)] * 2  # 10 us, and 30 us for each 100 kB
    assert step_us(sending(LINE, more=gathers), "bandwidth:factor=2") == 540 - 40 + 280 - 120


def test_a_call_that_waited_for_another_rank_does_not_move_the_line() -> None:
    late: list[Sent] = [*LINE, *LINE, (200_000, 1110.0)]  # 1 ms of it waited, which counts as bytes
    assert step_us(sending(late), "bandwidth:factor=2") == pytest.approx(100 + 880 + 1110 - 80 - 510)


@pytest.mark.parametrize(
    ("calls", "fastest"),
    [
        ([(None, 100.0), (None, 120.0)] * 2, 100),  # sizes are unknown
        ([(100_000, 100.0), (None, 120.0)] * 2, 100),
        ([(100_000, 100.0), (100_000, 120.0)] * 2, 100),  # sizes do not differ
        ([(100_000, 100.0), (190_000, 120.0)] * 2, 100),  # not by much
        ([(100_000, 100.0), (300_000, 120.0)], 100),  # through two calls any line fits
        ([(100_000, 120.0), (300_000, 100.0)] * 2, 100),  # more bytes take less time
        ([(100_000, 20.0), (100_000, 180.0), (300_000, 60.0), (300_000, 180.0)], 20),  # far from a line
    ],
)
def test_a_fixed_cost_that_is_not_known_is_none_or_at_most_the_fastest_call(
    calls: list[Sent], fastest: int
) -> None:
    graph, total = sending(calls), sum(time for _, time in calls)
    answer = predict(graph, [parse_request("bandwidth:factor=2", CHANGES)])
    assert answer.predicted_step_ms == pytest.approx((100 + total / 2) / 1000)
    low, high = (100 + total / 2) / 1000, (100 + total / 2 + len(calls) * fastest / 2) / 1000
    assert answer.range == pytest.approx((0.9 * low, 1.1 * high))
    assert any("counts as none" in text for text in answer.assumptions)
    stated = predict(graph, [parse_request("bandwidth:factor=2,latency_us=10", CHANGES)])
    assert stated.predicted_step_ms == pytest.approx(low + len(calls) * 0.005)


SIZES = st.lists(st.integers(10**5, 10**8), min_size=3, max_size=9)
FACTORS = st.floats(0.25, 8)


@given(fixed=st.floats(0, 2000), rate=st.floats(1, 300), sizes=SIZES, factor=FACTORS)
def test_a_fixed_cost_and_a_rate_give_the_true_time_at_any_bandwidth(
    fixed: float, rate: float, sizes: list[int], factor: float
) -> None:
    """The rate is in bytes per ns."""
    sizes = [*sizes, 4 * max(sizes)]

    def true(factor: float) -> list[Sent]:
        return [(size, fixed + size / rate / factor / 1000) for size in sizes]

    graph = sending(true(1))
    assert step_us(graph, "bandwidth:factor=1") == step_us(graph)
    assert step_us(graph, f"bandwidth:factor={factor}") == pytest.approx(
        step_us(sending(true(factor))), rel=0.02
    )


@given(
    calls=st.lists(st.tuples(st.none() | st.integers(0, 10**6), st.floats(1, 1000)), min_size=1, max_size=9)
)
def test_the_same_bandwidth_changes_nothing(calls: list[Sent]) -> None:
    graph = sending(calls)
    assert step_us(graph, "bandwidth:factor=1") == step_us(graph)
    assert step_us(graph, "bandwidth:factor=2") >= 100 + (step_us(graph) - 100) / 2 - 0.01
