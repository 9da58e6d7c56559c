"""A busy machine decides no verdict: delays are cut out of the clock before rules apply."""

from __future__ import annotations

import numpy as np
import pytest

from stepscope.analyze import RULES, RuleContext, apply_rules
from stepscope.analyze.analysis import analysis_of
from stepscope.analyze.delays import find_delays, without_delays
from stepscope.analyze.findings_text import nothing_found
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

STEPS = 5
LAYERS = 12


def small_operators(
    seed: int, lost_ms: float = 0.0, work_us: float = 0.0, chain: int = 0, grows: float = 0.0
) -> Trace:
    """Steps of `LAYERS` layers on a CPU, in which the loop may lose its core at any event.

    Args:
        seed: of the jitter and of the delays.
        lost_ms: the mean length of a delay; there are four per step.
        work_us: the time of a layer's product; 6 µs by default.
        chain: how many small elementwise operators follow it.
        grows: how much longer the products of each step are than those of the one before.
    """
    random = np.random.default_rng(seed)
    lines: list[str] = []
    now = 0.0
    for step in range(STEPS):
        begin, first = now, len(lines)
        for layer in range(LAYERS):
            product = (work_us or 6.0) * (1 + grows * step)
            for name, us in [("aten::addmm", product), *[("aten::tanh", 4.0)] * chain]:
                if random.random() < 4 / LAYERS / (1 + chain):
                    now += 1000 * (1 + random.exponential(lost_ms)) if lost_ms else 0
                now += 10
                end = now + us * random.uniform(0.95, 1.05)
                if random.random() < 4 / LAYERS / (1 + chain):
                    end += 1000 * (1 + random.exponential(lost_ms)) if lost_ms else 0
                lines.append(
                    f"main | {now:.3f} {end:.3f} | {name} | stage=forward "
                    f"Input_Dims=[[{layer % 2 + 1},64],[64,64]]"
                )
                now = end
        now += 20
        lines.insert(first, f"main | {begin:.3f} {now:.3f} | ProfilerStep#{step}")
    return annotate(drawn_trace("\n".join(lines)))


def rules_that_report(trace: Trace) -> dict[str, str]:
    return {one.rule: one.severity for one in apply_rules(RuleContext(trace), RULES)}


def length_ms(trace: Trace) -> float:
    return float((trace["steps"]["end_ns"] - trace["steps"]["start_ns"]).mean() / 1e6)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "options", [{"chain": 4}, {}, {"work_us": 900.0}], ids=["kernel_fusion", "small_batch", "clean"]
)
def test_the_same_rules_report_on_a_busy_machine(seed: int, options: dict[str, float]) -> None:
    quiet = small_operators(seed, **options)  # type: ignore[arg-type]
    busy = small_operators(seed, lost_ms=4.0, **options)  # type: ignore[arg-type]
    assert length_ms(busy) > length_ms(quiet) + 5
    assert rules_that_report(busy) == rules_that_report(quiet)
    steady = RuleContext(busy).measures.steady_ms
    assert steady == pytest.approx(RuleContext(quiet).measures.steady_ms, rel=0.15)


def test_the_length_of_a_step_stays_as_recorded() -> None:
    busy = small_operators(0, lost_ms=4.0)
    assert RuleContext(busy).measures.step_ms == pytest.approx(length_ms(busy), rel=1e-6)


def test_among_operators_too_short_to_grow_a_long_one_is_delayed_by_all_of_it() -> None:
    lines, now = list[str](), 0
    for step, length in enumerate([10, 10, 1010, 10, 10]):
        lines.append(f"main | {now} {now + length + 10} | ProfilerStep#{step}")
        lines.append(f"main | {now + 5} {now + 5 + length} | aten::add | stage=forward")
        now += length + 10
    trace = annotate(drawn_trace("\n".join(lines)))
    assert find_delays(trace, trace["steps"]).total() == 1_000_000


def lengths(*each: float, first: float = 5) -> Trace:
    """Steps of one operator of these lengths, so many us after their beginning, with 5 us after it."""
    lines, now = list[str](), 0.0
    for step, us in enumerate(each):
        lines.append(f"main | {now:.3f} {now + us + first + 5:.3f} | ProfilerStep#{step}")
        lines.append(f"main | {now + first:.3f} {now + first + us:.3f} | aten::add | stage=forward")
        now += us + first + 5
    return annotate(drawn_trace("\n".join(lines)))


@pytest.mark.parametrize(
    ("each", "lost_us"),
    [
        ([10, 10, 70, 10], 0),  # twice as long as usual, and 50 us
        ([10, 10, 70.001, 10], 60.001),
        ([20, 20, 120, 20], 0),  # all of the step may be longer
        ([19.999, 19.999, 120, 19.999], 100.001),
        ([10] + [110] * 6, 600),  # of less than 8 steps, what the shortest takes is usual
        ([10] + [110] * 7, 0),
    ],
)
def test_what_takes_far_longer_than_usual_is_a_delay(each: list[float], lost_us: float) -> None:
    trace = lengths(*each)
    assert find_delays(trace, trace["steps"]).total() == round(1000 * lost_us)


def test_delays_are_cut_out_of_the_clock() -> None:
    cut = without_delays(lengths(10, 10, 1010))
    assert cut["steps"]["start_ns"].tolist() == [0, 20_000, 40_000]
    assert cut["steps"]["end_ns"].tolist() == [20_000, 40_000, 60_000]
    assert cut.events["duration_ns"].tolist() == [20_000, 10_000] * 3
    assert cut.events["self_ns"].tolist() == [10_000, 10_000] * 3
    assert cut.events["start_ns"].tolist() == [0, 5_000, 20_000, 25_000, 40_000, 45_000]


@pytest.mark.parametrize(
    ("later", "usual_us"),
    [
        ({"cpu_ns": 220_000}, 220),  # all of it is work
        ({"cpu_ns": 20_000}, 220),  # or waits for something else than a core
        ({"cpu_ns": 20_000, "queued_ns": 4_000_000}, 20),
        ({}, 220),
        ({"cpu_ns": 9_000_000, "median_ns": 9_000_000}, 1060 / 3),  # it takes longer after the recording
    ],
)
def test_no_step_is_cut_shorter_than_steps_after_the_recording(
    later: dict[str, object], usual_us: float
) -> None:
    """Steps of 20, 20 and 1,020 us: what looks like delays may be work that varies."""
    times = {"median_ns": 220_000, "elapsed_ns": 4_400_000, "queued_ns": 0} | later
    busy = lengths(10, 10, 1010).with_metadata(capture={"unrecorded_steps": times})
    assert length_ms(without_delays(busy)) * 1000 == pytest.approx(usual_us)
    assert RuleContext(busy).measures.steady_ms * 1000 == pytest.approx(usual_us)


def test_the_longest_delays_are_cut_first() -> None:
    """Of delays of 0.4 and 1 ms, 0.32 ms may go: steps take 0.3 ms each, and 0.236 ms later."""
    times = {"median_ns": 236_000, "cpu_ns": 236_000, "elapsed_ns": 4_720_000, "queued_ns": 0}
    busy = lengths(10, 410, 10, 1010, 10).with_metadata(capture={"unrecorded_steps": times})
    cut = without_delays(busy)["steps"]
    assert (cut["end_ns"] - cut["start_ns"]).tolist() == [20_000, 420_000, 20_000, 700_000, 20_000]


def test_where_nothing_is_found_the_analyzer_says_what_the_report_says() -> None:
    """A wait in one step of four is cut, but most of the recorded time."""
    lines, now = list[str](), 0
    for step, wait in enumerate([10, 10, 9000, 10]):
        lines.append(f"main | {now} {now + wait + 510} | ProfilerStep#{step}")
        lines.append(f"main | {now} {now + 5} | aten::empty | stage=forward")
        lines.append(f"main | {now + wait} {now + wait + 500} | aten::mm | stage=forward")
        now += wait + 510
    heading = analysis_of(RuleContext(annotate(drawn_trace("\n".join(lines)))), []).heading
    assert heading.steady_ms == pytest.approx(0.52, abs=0.01)
    assert nothing_found(heading).startswith("No rule explains this: Python limits the step: for 82% of it")


@pytest.mark.parametrize("metadata", [{"ranks": (0, 1)}, {"world_size": 2}])
def test_a_job_and_a_device_are_left_alone(metadata: dict[str, object]) -> None:
    trace = lengths(10, 10, 1010)
    assert without_delays(trace) is not trace
    job = trace.with_metadata(**metadata)
    assert without_delays(job) is job


def test_steps_that_grow_with_their_batch_are_not_delayed() -> None:
    growing = small_operators(0, work_us=500.0, grows=0.8)
    assert without_delays(growing) is growing


def test_time_between_calls_is_no_delay_of_all_steps_but_the_first() -> None:
    """Before the first call nothing is recorded, so the first gap has no length."""
    calls = "\n".join(
        f"main | {at} {at + 100} | PjitFunction(train_step) | cat=runtime" for at in range(0, 40_000, 10_000)
    )
    trace = annotate(drawn_trace(calls, framework="jax"))
    assert len(trace["steps"]) >= 3
    assert without_delays(trace) is trace


def test_two_steps_show_no_delay() -> None:
    busy = small_operators(0, lost_ms=4.0)
    two = busy.with_table(busy["steps"].take(np.arange(2)))
    assert without_delays(two) is two


VARYING = {
    "waiting for data": "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
    "compiling": "dynamo_timed",
}


@pytest.mark.parametrize("name", VARYING.values(), ids=VARYING)
def test_what_varies_by_itself_is_no_delay(name: str) -> None:
    lines, now = [], 0
    for step in range(STEPS):
        work = now + (20_000 if step == 2 else 50)
        lines += [
            f"main | {now} {work + 5000} | ProfilerStep#{step}",
            f"main | {now + 10} {work} | {name}",
            f"main | {work + 10} {work + 4000} | aten::mm | stage=forward",
        ]
        now = work + 5000
    trace = annotate(drawn_trace("\n".join(lines)))
    assert without_delays(trace) is trace
