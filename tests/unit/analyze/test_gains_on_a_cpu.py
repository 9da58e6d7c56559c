"""Gains of fixes on a CPU: dispatch, the backward pass, and what is unsure."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_findings import found

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

CHAINS = 6
FORWARD_US, BACKWARD_US, GAP_US = 4.0, 6.0, 2.0


def of_rule(name: str, trace: Trace) -> list[Finding]:
    return apply_rules(RuleContext(trace), [rule for rule in RULES if rule.name == name])


def written_out(operators: int, between: str = "") -> str:
    """Layers of a product and elementwise operators, then their backward pass."""
    text, time, sequence = ["main | 0 2000 | ProfilerStep#0"], 10.0, 0
    nodes: list[str] = []

    def call(name: str, us: float, options: str = "") -> None:
        nonlocal time
        text.append(f"main | {time} {time + us} | {name} | {options}")
        time += us + GAP_US

    for _ in range(CHAINS):
        call("aten::mm", 20)
        for _ in range(operators):
            sequence += 1
            call("aten::mul", FORWARD_US, f"seq={sequence}")
            nodes.insert(0, f"seq={sequence} fwd=1")
            if between:
                call(between, 1)
    call("aten::mm", 20)
    for link in nodes:
        call("autograd::engine::evaluate_function: MulBackward0", BACKWARD_US, link)
        if link.startswith(tuple(f"seq={one * operators + 1} " for one in range(CHAINS))):
            call("aten::mm", 20)
    return "\n".join(text)


@pytest.mark.parametrize("operators", [3, 5])
def test_fusing_saves_calls_with_their_dispatch_and_their_backward(operators: int) -> None:
    finding = found("kernel_fusion", written_out(operators))
    assert finding is not None
    each = (FORWARD_US + GAP_US) + (BACKWARD_US + GAP_US)
    assert finding.gain.ms == pytest.approx(CHAINS * (operators - 1) * each / 1e3)
    assert f"run in {2 * CHAINS} chains" in finding.what


def test_a_view_between_elementwise_operators_keeps_them_together() -> None:
    plain, views = (found("kernel_fusion", written_out(4, one)) for one in ("", "aten::view"))
    other = found("kernel_fusion", written_out(4, "aten::nonzero"))
    assert plain is not None
    assert views is not None
    assert f"run in {2 * CHAINS} chains" in views.what
    assert other is None or other.gain.ms < plain.gain.ms


def test_a_call_costs_until_the_next_one_but_not_what_other_python_takes() -> None:
    context = RuleContext(
        annotate(
            drawn_trace("""
        main | 0 1000 | ProfilerStep#0
        main | 10 20 | aten::mul
        main | 25 35 | aten::mul
        main | 500 510 | aten::mul
    """)
        )
    )
    assert context.eager.cost_ns.tolist() == [15_000, 30_000, 10_000]


UNEVEN = """
    main | 0 1000 | ProfilerStep#0
    main | 1000 2000 | ProfilerStep#1
    main | 2000 3000 | ProfilerStep#2
    main | 3000 4000 | ProfilerStep#3
"""


@pytest.mark.parametrize(
    ("times_us", "steady"),
    [([50] * 4, 1.0), ([0, 0, 0, 50], 0.0), ([50, 0, 50, 0], 1.0)],
    ids=["every step", "one step", "every other step"],
)
def test_what_one_step_has_more_of_counts_as_in_the_step_with_the_next_most(
    times_us: list[int], steady: float
) -> None:
    calls = [
        f"main | {1000 * step + 10} {1000 * step + 10 + us} | aten::sort"
        for step, us in enumerate(times_us)
        if us
    ]
    trace = annotate(drawn_trace(UNEVEN + "\n".join(calls)))
    context = RuleContext(trace)
    trace_rows = context.search.find("aten::sort")
    assert context.measures.steadiness(trace_rows) == pytest.approx(steady, abs=0.01)


def test_a_bound_ends_with_the_step() -> None:
    context = RuleContext(annotate(drawn_trace(written_out(3))))
    assert context.gains.bound(0.5, "why").stated_ms == (0.0, 0.5)
    assert context.gains.bound(99.0, "why").ms == pytest.approx(context.measures.steady_ms)


def test_a_larger_batch_saves_half_of_the_overhead_at_least() -> None:
    step = "main | 0 1000 | ProfilerStep#0\n" + "\n".join(
        f"main | {10 + 40 * one} {12 + 40 * one} | aten::mm | Input_Dims=[[1,64],[64,64]]"
        for one in range(20)
    )
    finding = found("small_batch", step)
    assert finding is not None
    low, high = finding.gain.stated_ms
    assert low == pytest.approx(finding.gain.ms / 2)
    assert high == pytest.approx(1.0)


ZEROING = """
    main | 0 1000 | ProfilerStep#0
    main | 10 200 | Optimizer.zero_grad#SGD.zero_grad
    main | 20 190 | aten::zero_
"""


@pytest.mark.parametrize(("kib", "reported"), [(64, True), (4096, False)])
def test_large_gradients_are_better_kept_on_a_cpu(kib: int, reported: bool) -> None:
    trace = annotate(
        drawn_trace(
            ZEROING
            + """
    main | 300 400 | stepscope.module: layer
    main | 310 390 | aten::mm
    """
        )
    )
    modules = trace["modules"]
    size = np.full(len(modules), kib << 10, np.int64)
    trace = trace.with_table(modules.with_columns(parameter_bytes=size))
    assert bool(of_rule("zero_grad_memset", trace)) == reported


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_only_the_first_pass_adds_to_zeros(passes: int) -> None:
    """Later ones of an accumulated update add to gradients; 30 us to zero, and 50 us to add."""
    text = "main | 0 1000 | ProfilerStep#0\nmain | 2 50 | Optimizer.zero_grad#SGD.zero_grad\n"
    text += "main | 10 40 | aten::zero_\nmain | 900 950 | Optimizer.step#SGD.step\n"
    for number in range(passes):
        at, node = 100 + 200 * number, "autograd::engine::evaluate_function:"
        text += f"main | {at} {at + 20} | stepscope.module: net\n"
        text += f"main | {at + 1} {at + 18} | aten::mm | seq={at}\n"
        text += f"main | {at + 30} {at + 60} | {node} MmBackward0 | seq={at} fwd=1\n"
        text += f"main | {at + 70} {at + 130} | {node} torch::autograd::AccumulateGrad\n"
        text += f"main | {at + 75} {at + 125} | aten::add_\n"
    (finding,) = of_rule("zero_grad_memset", annotate(drawn_trace(text)))
    assert finding.gain.ms == pytest.approx(0.08)


EMBEDDING = """
    main | 0 1000 | ProfilerStep#0
    main | 10 20 | stepscope.module: table
    main | 11 19 | aten::embedding | seq=1
    main | 100 500 | autograd::engine::evaluate_function: EmbeddingBackward0 | seq=1 fwd=1
    main | 600 900 | Optimizer.step#SGD.step
    main | 610 890 | aten::add_
"""


def test_a_sparse_gradient_also_saves_the_update_of_the_rows_not_in_use() -> None:
    trace = annotate(drawn_trace(EMBEDDING))
    modules = trace["modules"]
    names = Text.of(["Embedding"] * len(modules))
    trace = trace.with_table(modules.with_columns(parameters=np.full(len(modules), 1000), **{"class": names}))
    (finding,) = of_rule("forward_backward", trace)
    assert finding.gain.ms == pytest.approx(0.384 + 0.28, abs=0.002)


BURSTS = """
    main | 0     5000  | ProfilerStep#0
    main | 10    1000  | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 1010  4990  | aten::mm
    main | 5000  34000 | ProfilerStep#1
    main | 5010  30000 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 30010 33990 | aten::mm
    main | 34000 39000 | ProfilerStep#2
    main | 34010 35000 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 35010 38990 | aten::mm
"""
NO_BURSTS = BURSTS.replace("5010  30000", "5010  6000").replace("30010", "6010")


def after_recording(loading_ms: float, rest_ms: float) -> dict[str, object]:
    """A manifest with the mean times of the steps after the recording."""
    times = {"data_loading": loading_ms, "rest": rest_ms}
    parts = {name: {"recurring_ns": round(ms * 1e6)} for name, ms in times.items()}
    longer = 50_000_000  # than the recorded steps, so recording cost nothing
    return {"unrecorded_steps": {"count": 20, "median_ns": longer, "parts": parts}}


@pytest.mark.parametrize(
    ("later_ms", "gain_ms"),
    [
        (12.0, (0.99 + 24.99 + 0.99) / 3),  # workers deliver several batches at once
        (1.0, 0.99),  # an epoch began in the recorded steps
        (None, 0.99),  # unknown: what one step has does not count
    ],
)
def test_a_single_long_wait_counts_if_the_steps_after_the_recording_wait_as_long(
    later_ms: float | None, gain_ms: float
) -> None:
    capture = after_recording(later_ms, 4) if later_ms else {}
    finding = found("input_bound", BURSTS, capture=capture)
    assert finding is not None
    assert finding.gain.ms == pytest.approx(gain_ms, rel=0.01)
    assert "Later steps" not in finding.what


def test_steps_that_wait_only_after_the_recording_are_input_bound() -> None:
    """Workers went on while the recorder started, so the recorded steps found their batches."""
    text = NO_BURSTS.replace("10    1000 ", "10    30   ").replace("5010  6000", "5010  5030")
    text = text.replace("34010 35000", "34010 34030")
    assert found("input_bound", text, capture=after_recording(0.02, 4)) is None
    finding = found("input_bound", text, capture=after_recording(6, 4))
    assert finding is not None
    assert "Later steps load or wait for 60% (6 ms of 10 ms)" in finding.what
    assert finding.gain.ms == pytest.approx(0.6 * finding.steady_ms)


def test_a_busy_machine_after_the_recording_hides_no_loading() -> None:
    """All of a step took three times as long: the share of loading is the same."""
    finding = found("input_bound", NO_BURSTS, capture=after_recording(3, 36))
    assert finding is not None
    assert "Later steps" not in finding.what


def test_a_loop_that_loads_its_batches_itself_finds_none_ready() -> None:
    text = NO_BURSTS.replace("_MultiProcessing", "_SingleProcess").replace("10    1000 ", "10    30   ")
    text = text.replace("5010  6000", "5010  5030").replace("34010 35000", "34010 34030")
    finding = found("input_bound", text, capture=after_recording(6, 4))
    assert finding is not None
    assert "(6 ms of 10 ms); the recorded ones load less." in finding.what


def test_a_capture_adds_to_the_range_what_recording_an_event_may_have_cost() -> None:
    """A quarter of a microsecond for each event of the chains; the gain itself stays."""
    trace = annotate(drawn_trace(written_out(3)))
    [bound] = of_rule("kernel_fusion", trace)
    [ranged] = of_rule("kernel_fusion", trace.with_metadata(recording_cost={"removed_ns": 1}))
    assert ranged.gain.ms == bound.gain.ms
    events = 2 * 3 * CHAINS
    most = bound.gain.ms + events * 0.25e-3
    assert ranged.gain.stated_ms == pytest.approx((bound.gain.ms / 2, most))
