"""Communication in sketches: when a rank arrives, and when it waits."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.models.ranks import sketch_of
from stepscope.models.ranks.calls import CallKind, Calls
from stepscope.testing import drawn_trace

ARGUMENTS = "Collective_name=allreduce Group_size=2 In_msg_nelems=1000 Out_msg_nelems=500"
STEP = f"""
    main     |    0 1000 | ProfilerStep#0
    main     |  100  300 | aten::mm         | seq=1
    main     |  110  120 | cudaLaunchKernel | corr=1
    main     |  130  140 | cudaLaunchKernel | corr=2
    main     |  150  160 | cudaLaunchKernel | corr=3
    main     |  %s | cudaLaunchKernel | corr=4
    stream 7 |  130  300 | sgemm            | corr=1
    comm 8   |  200  500 | ncclDevKernel_AllReduce | corr=2 dtype=Float {ARGUMENTS}
    comm 8   |  510  600 | ncclDevKernel_AllReduce | corr=3 dtype=Float {ARGUMENTS}
    stream 7 |  700  800 | adam             | corr=4
"""


def calls(text: str) -> Calls:
    return sketch_of(annotate(drawn_trace(text))).calls


def test_a_rank_that_has_nothing_to_do_waits() -> None:
    """Work launched before the transfers end waits for them: 300 to 500 and 510 to 600."""
    found = calls(STEP % "170 180")
    columns = found.columns()
    assert found.own_ns == [1_000_000 - 200_000 - 90_000]
    assert columns.arrival_ns.tolist() == [200_000, 310_000]
    assert columns.waited_ns.tolist() == [300_000, 310_000]
    assert columns.duration_ns.tolist() == [300_000, 90_000]


def test_work_launched_later_does_not_wait() -> None:
    """The CPU is late: it launches the optimizer 90 us after the last transfer has ended."""
    found = calls(STEP % "690 695")
    columns = found.columns()
    assert found.own_ns == [1_000_000]
    assert columns.waited_ns.tolist() == [700_000, 700_000]


def test_kinds_bytes_and_the_work_before_a_call_are_kept() -> None:
    found = calls(STEP % "170 180")
    columns = found.columns()
    assert found.kinds == [CallKind("allreduce", size=2)]
    assert (columns.sent.tolist(), columns.received.tolist()) == ([4000] * 2, [2000] * 2)
    assert [found.places[place] for place in columns.place] == ["", "forward: sgemm"]


@pytest.mark.parametrize("repeats", [1, 3])
def test_columns_survive_packing(repeats: int) -> None:
    columns = calls(STEP % "170 180").columns()
    for _ in range(repeats):
        columns = Calls(packed=columns.pack()).columns()
    assert columns.arrival_ns.tolist() == [200_000, 310_000]


# On a CPU: DDP waits in Python at the end of backward, tensor parallelism in an operator.
DDP = """
    main |   0 1000 | ProfilerStep#0
    main | 100  300 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 280  290 | c10d::allreduce_
    gloo | 285  700 | gloo:all_reduce
    main | 710  900 | Optimizer.step#SGD.step
    main | 720  890 | aten::add_
"""
TENSOR_PARALLEL = """
    main |   0 1000 | ProfilerStep#0
    main |  50  800 | stepscope.module:
    main | 100  110 | c10d::allreduce_
    gloo | 105  600 | gloo:all_reduce
    main | 200  650 | aten::addmm
    main | 210  601 | _c10d_functional::wait_tensor
    main | 900  990 | aten::add_
"""


@pytest.mark.parametrize(
    ("text", "waits_us", "arrival_us", "stage", "work_us"),
    [
        (DDP, 700 - 300, 285, "backward", 200),
        # Between the call and the operator only Python runs, which counts as waiting.
        (TENSOR_PARALLEL, (200 - 110) + (600 - 210), 105, "forward", 750 - 480),
    ],
    ids=["between operators", "in an operator"],
)
def test_without_a_device_a_rank_waits_while_nothing_computes(
    text: str, waits_us: int, arrival_us: int, stage: str, work_us: int
) -> None:
    trace = annotate(drawn_trace(text))
    found = sketch_of(trace)
    columns = found.calls.columns()
    assert found.calls.own_ns == [1_000_000 - 1000 * waits_us]
    assert columns.arrival_ns.tolist() == [1000 * arrival_us]
    assert found.waiting == [pytest.approx(waits_us / 1000)]
    assert found.work[stage] == [pytest.approx(work_us / 1000)]
    call = trace.events.text("name").mask("gloo:all_reduce").argmax()
    assert trace.events.text("stage")[int(call)] == stage
