"""The report in a terminal: golden text, reviewed by eye."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console
from test_module_costs import node
from test_report_facts import TWO_STEPS, WARMING, drawn

from stepscope.base.kernel_names import short_kernel
from stepscope.base.numbers import bar, count, ms, percent, size
from stepscope.facts.summary.facts import Efficiency
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.report_text import picture, print_report, recording_cost
from stepscope.facts.summary.work_text import efficiency_parts
from stepscope.trace.concat import concat
from stepscope.trace.trace import Trace

GOLDEN = Path(__file__).parents[3] / "golden" / "report"


def printed(trace: Trace, width: int) -> str:
    out = io.StringIO()
    summaries = [summarize(trace, rank) for rank in trace.metadata.ranks]
    print_report(Console(file=out, width=width, color_system=None), summaries)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def in_ms(text: str) -> str:
    """A drawn trace whose numbers are milliseconds; launches are short, so that they load nothing."""
    text = re.sub(r"\|\s*(\d+)\s+(\d+)\s*\|", r"| \g<1>000 \g<2>000 |", text)
    return re.sub(r"(\d+)000 \d+000 (?=\| cudaLaunch)", r"\g<1>000 \g<1>900 ", text)


RANK = in_ms(TWO_STEPS)
ONE = RANK + in_ms("""
    main     |  43  59 | nn.Module: Net_0
    main     |  44  50 | nn.Module: Linear_0
    main     |  45  46 | cudaLaunchKernel | corr=5
    stream 7 |  60  65 | sgemm            | corr=5
    stream 7 |   0   2 | lost
""")


@pytest.mark.parametrize("width", [80, 120])
def test_one_rank(width: int) -> None:
    trace = drawn(ONE, source="/tmp/step.json", framework="pytorch")
    assert printed(trace, width) == (GOLDEN / f"one_rank_{width}.txt").read_text("utf-8")


def test_several_ranks() -> None:
    ranks = [drawn(RANK, ranks=(rank,), world_size=2, source="ranks") for rank in (0, 1)]
    assert printed(concat(ranks), 80) == (GOLDEN / "several_ranks_80.txt").read_text("utf-8")


def test_ranks_without_a_device_are_compared_by_their_stages() -> None:
    text = "main | 0 50 | ProfilerStep#0\nmain | 5 40 | aten::mm"
    loads = "\nmain | 40 50 | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    ranks = [drawn(text + loads * rank, ranks=(rank,), world_size=2, source="ranks") for rank in (0, 1)]
    rows = [line.split() for line in printed(concat(ranks), 80).splitlines()]
    assert ["rank", "step", "data", "loading", "forward", "other"] in rows
    assert ["0", "▼", "0.05", "0.00", "0.03", "0.01"] in rows


def test_no_line_is_wider_than_the_terminal() -> None:
    trace = drawn(ONE)
    for width in (60, 80, 100, 140):
        assert max(map(len, printed(trace, width).splitlines())) <= width


def test_a_narrow_terminal_costs_bars_and_no_digits() -> None:
    for width in (60, 71, 75, 76, 80):
        stages = printed(drawn(ONE), width).partition("Stages")[2].partition("Device")[0]
        assert "…" not in stages
        assert ("█" in stages) is (width >= 76)


def test_a_capture_that_did_not_complete_says_so() -> None:
    capture = {"outcome": "raised", "message": "the script raised ValueError at step 4"}
    trace = drawn(ONE, capture=capture).with_warnings([("raised", capture["message"], 1)])
    assert printed(trace, 80).count("the script raised ValueError") == 1


def test_where_one_step_decides_the_mean_the_median_is_told() -> None:
    steps = enumerate([(0, 10), (10, 20), (20, 30), (30, 130)])
    lines = [f"main | {begin} {end} | ProfilerStep#{n}" for n, (begin, end) in steps]
    assert "10.00 to 100.0, ± 38.97, median 10.00 over 4 steps" in printed(
        drawn(in_ms("\n".join(lines))), 100
    )
    assert "median" not in printed(drawn(ONE), 100)


def test_names_are_shortened() -> None:
    name = "void at::native::vectorized_elementwise_kernel<4, at::native::Add<float>>(int, char)"
    assert short_kernel(name) == "vectorized_elementwise_kernel<4, Add<>>"
    assert short_kernel("aten::mm") == "aten::mm"
    assert short_kernel("k" * 99, 10) == "kkkkkkkkk…"
    assert short_kernel("aten::flash_attention_for_cpu_backward", 24) == "aten::flash_att…backward"


def test_numbers_have_the_digits_that_matter() -> None:
    assert [ms(value) for value in (0, 0.0042, 68.694, 176.078, 12345.6)] == [
        "0.00",
        "0.004",
        "68.69",
        "176.1",
        "12,346",
    ]
    assert [percent(share) for share in (0.0312, 0.33, 1)] == ["3.1%", "33%", "100%"]
    assert [count(value) for value in (999, 11_200_000)] == ["999", "11.2 M"]
    assert [size(value) for value in (12, 44_900_000)] == ["12 B", "44.9 MB"]
    assert [bar(share, 2) for share in (0, 0.25, 0.5, 2)] == ["", "▌", "█", "██"]


def model_told(calls: dict[str, int], *modules: dict[str, Any]) -> list[list[str]]:
    """The rows of the model in a report; each call of a module takes so many microseconds."""
    lines, begin = ["main | 0 9000 | ProfilerStep#1", "main | 0 8900 | stepscope.module:"], 10
    for path, length in calls.items():
        lines.append(f"main | {begin} {begin + length} | stepscope.module: {path}")
        begin += length + 10
    text = printed(drawn("\n".join(lines), model=node("net", "Net", *modules)), 80)
    table = text.partition("Model,")[2].partition("\n\n")[0]
    rows = [line.split() for line in table.splitlines()[3:]]
    return [row for row in rows if row[:2] != ["no", "module"]]


@pytest.mark.parametrize(("only_on_cpu", "lanes"), [(False, "streams"), (True, "threads")])
def test_what_works_at_once_is_named(only_on_cpu: bool, lanes: str) -> None:
    text = "\n".join(line for line in ONE.splitlines() if not (only_on_cpu and "stream 7" in line))
    out = io.StringIO()
    print_report(Console(file=out, width=120), [replace(summarize(drawn(text)), at_once=1.3)])
    assert f"means over {lanes}: 1.3 work at once" in out.getvalue()


def test_parameters_that_are_not_known_are_not_0() -> None:
    part = node("fc", "Linear")
    del part["parameters"]
    text = "main | 0 100 | ProfilerStep#1\nmain | 0 90 | stepscope.module: \n"
    trace = drawn(text + "main | 5 80 | stepscope.module: fc", model=node("net", "Net", part))
    rows = [line.split() for line in printed(trace, 120).splitlines() if "Linear" in line or "net" in line]
    assert [row[-1] == "1" for row in rows] == [True, False]
    assert rows[1][-1] != "0"


def test_modules_of_rollouts_have_their_time_outside_of_training() -> None:
    """Half of the step is a rollout; what has no module is named by stage."""
    text = printed(
        drawn("""
        main |   0 1000 | ProfilerStep#1
        main |   0  500 | stepscope.block: collect (/x/a2c.py:19)
        main |  10  310 | stepscope.module: net
        main |  20  300 | aten::addmm
        main | 320  490 | aten::multinomial
        main | 500  600 | stepscope.module: net
        main | 510  590 | aten::addmm | seq=1
        main | 600  700 | AddmmBackward0 | seq=1 fwd=1
        main | 700 1000 | Optimizer.step#SGD.step
    """),
        80,
    )
    (net,) = [line.split() for line in text.splitlines() if line.startswith("model ")]
    assert net[1:5] == ["0.10", "0.10", "0.30", "50%"]
    assert "no module: optimizer 30%, other 20%" in text


def test_passes_outside_of_modules_are_named_too() -> None:
    text = printed(
        drawn("""
        main |   0 1000 | ProfilerStep#1
        main |   0  200 | stepscope.module: net
        main |  10  190 | aten::mm  | seq=1
        main | 200  400 | aten::bmm | seq=2
        main | 400  500 | stepscope.module: net
        main | 410  490 | aten::addmm | seq=3
        main | 500  550 | AddmmBackward0 | seq=3 fwd=1
        main | 550  850 | BmmBackward0 | seq=2 fwd=1
        main | 850  900 | MmBackward0 | seq=1 fwd=1
        main | 900 1000 | Optimizer.step#SGD.step
    """),
        80,
    )
    assert "no module: backward 30%, forward 20%, optimizer 10%" in " ".join(text.split())


def test_adapters_around_a_model_take_nothing_of_the_depth() -> None:
    layers = node("layers", "Sequential", node("a", "Layer", node("fc", "Linear")))
    body = node("body", "LoraModel", node("encoder", "Encoder", layers))
    body["file"] = "/x/site-packages/peft/tuners/lora/model.py"
    called = dict.fromkeys(("body", "body.encoder", "body.encoder.layers"), 1)
    rows = model_told(called | {"body.encoder.layers.a": 300, "body.encoder.layers.a.fc": 800}, body)
    assert [row[0] for row in rows] == ["net", "body", "encoder", "layers", "a"]


def test_a_list_of_modules_takes_nothing_of_the_depth() -> None:
    layers = node("layers", "ModuleList", node("a", "Layer", node("fc", "Linear")))
    body = node("body", "Body", node("encoder", "Encoder", layers))
    called = dict.fromkeys(("body", "body.encoder", "body.encoder.layers.a"), 1)
    rows = model_told(called | {"body.encoder.layers.a.fc": 800}, body)
    assert [row[0] for row in rows] == ["net", "body", "encoder", "layers", "a"]


def test_small_modules_are_put_together_beside_large_ones_alone() -> None:
    small = {f"small.{name}": 100 for name in "abcd"}
    parts = node("small", "Small", *(node(name, "Linear") for name in "abcd"))
    rows = model_told({"large": 4000, **small}, node("large", "Linear"), parts)
    assert [row[0] for row in rows] == ["net", "large", "small"]


def test_a_class_has_the_room_that_there_is() -> None:
    name = "BertForSequenceClassification"
    assert ["part", name] in [row[:2] for row in model_told({"part": 900}, node("part", name))]


@pytest.mark.parametrize(("end", "said"), [(600, True), (350, False)])
def test_steps_that_differ_widely_are_said_to(end: int, said: bool) -> None:
    text = f"main | 0 100 | ProfilerStep#0\nmain | 100 {end} | ProfilerStep#1"
    trace = drawn(f"{text}\nmain | 5 40 | aten::mm\nmain | 105 140 | aten::mm")
    assert ("the longest step takes 5 times as long" in printed(trace, 120)) == said


def test_a_step_that_warms_up_is_told_beside_the_mean() -> None:
    out = printed(drawn(WARMING, source="/tmp/step.json"), 80)
    assert "step.json   3 steps" in out
    assert "Step 0.10 ms   0.10 to 0.10, ± 0.00 over 2 steps" in out
    assert "excludes the warm-up step 0 (1.00 ms)" in out


def test_a_step_that_is_no_training_step_is_explained() -> None:
    said = "one call of ResNet, until the next call"
    assert f"a step is {said}" in printed(drawn(ONE, capture={"step_is": said}), 80)
    assert "a step is" not in printed(drawn(ONE, capture={"step_is": None}), 80)


def timed(median_ms: int) -> dict[str, int]:
    return {"count": 20, "median_ns": median_ms * 1_000_000, "p10_ns": 0, "p90_ns": 0}


def cost_said(removed_ms: float, unrecorded_ms: float, error: float = 0.0, memory_ms: float = 0) -> str:
    """What a report says of a cost; the mean step without it takes 150 ms."""
    cost = {
        "recorded_ns": 150_000_000,
        "unrecorded_ns": unrecorded_ms * 1e6,
        "unrecorded_error": error,
        "removed_ns": removed_ms * 1e6,
        "memory_ns": memory_ms * 1e6,
        "recorded_page_faults": 1_400,
        "unrecorded_page_faults": 400,
        "events": 10_000,
    }
    return recording_cost(replace(summarize(drawn(ONE)), recording_cost=cost))


def test_what_recording_costs_adds_up_with_the_mean_step() -> None:
    said = cost_said(30, 120)
    assert said.startswith("recorded steps took 180.0 ms, of which 30.00 ms is recording: ")
    assert said.endswith("3.0 µs per event for 10.0 k events")
    parts = "2.0 µs per event for 10.0 k events and 10.00 ms for 1.0 k page faults"
    assert f"30.00 ms is recording: {parts}" in cost_said(30, 120, memory_ms=10)


@pytest.mark.parametrize(("removed_ms", "error"), [(0, 0.0), (1, 0.0), (10, 0.1)])
def test_a_cost_below_the_noise_is_not_said(removed_ms: float, error: float) -> None:
    assert cost_said(removed_ms, 150, error) == ""


def test_what_the_cost_does_not_explain_is_said() -> None:
    said = "unrecorded steps take 120.0 ms; the rest of the difference has another cause"
    assert cost_said(1, 120) == said


def test_a_cost_that_is_not_known_is_said() -> None:
    out = printed(drawn(ONE, capture={"unrecorded_steps": None}), 160)
    assert "times include the cost of recording: no unrecorded steps were timed in this run" in out
    assert "recording" not in printed(drawn(ONE), 160)


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (6144, 20, "is due to memory: 6.1 k page faults per recorded step, 20 later"),
        (6144, 6000, "has another cause"),
    ],
)
def test_what_other_processes_took_is_not_blamed_on_memory(before: int, after: int, cause: str) -> None:
    load = {"elapsed_ns": 3 * 150_000_000, "queued_ns": 300_000_000, "cpu_ns": 50_000_000}
    capture = {
        "recorded_steps": {"page_faults": before, "median_ns": 150_000_000, **load},
        "unrecorded_steps": {**timed(100), "page_faults": after},
    }
    out = " ".join(printed(drawn(ONE, capture=capture), 160).split())
    assert cause not in out
    assert "the rest of the difference is what other processes took" in out


@pytest.mark.parametrize(
    ("before", "after", "cause"),
    [
        (6144, 20, "is due to memory: 6.1 k page faults per recorded step, 20 later"),
        (6144, 6000, "has another cause"),
    ],
)
def test_memory_that_recorded_steps_got_anew_is_said(before: int, after: int, cause: str) -> None:
    capture = {
        "recorded_steps": {"page_faults": before},
        "unrecorded_steps": {**timed(100), "page_faults": after},
    }
    out = " ".join(printed(drawn(ONE, capture=capture), 160).split())
    assert f"the rest of the difference {cause}" in out


def test_the_cost_of_memory_is_said_apart() -> None:
    """A forward pass is 70 ms longer in recorded steps, and these get 1,024 new pages."""
    text = "main | 0 180 | ProfilerStep#0\nmain | 5 175 | nn.Module: Net_0\nmain | 6 170 | aten::mm"
    recorded, unrecorded = (
        {**timed(step), "page_faults": faults, "parts": parts_of(forward)}
        for step, faults, forward in ((180, 1024, 170), (110, 0, 100))
    )
    capture = {"recorded_steps": {**recorded, "page_fault_ns": 70_000}, "unrecorded_steps": unrecorded}
    out = " ".join(printed(drawn(in_ms(text), capture=capture), 160).split())
    assert "0.0 µs per event for 2 events and 70.00 ms for 1.0 k page faults (memory the" in out
    assert "Step 110.0 ms" in out
    assert "rest of the difference" not in out


def parts_of(forward_ms: int) -> dict[str, dict[str, int]]:
    times = {"forward": 1_000_000 * forward_ms, "rest": 10_000_000}
    return {name: {"median_ns": ns, "cpu_ns": ns} for name, ns in times.items()}


def test_a_trace_of_kernels_alone_has_no_stages_that_the_cpu_bounds() -> None:
    text = printed(drawn("stream 7 | 0 700 | sgemm\nstream 7 | 800 1500 | sgemm"), 80)
    assert "device-bound" in text
    assert "Stages" not in text
    assert "wall ms" not in text


def test_calls_without_known_names_do_not_show_what_the_cpu_did() -> None:
    calls = "main | 0 1600 | ProfilerStep#3\nmain | 0 900 | FunctionRun | cat=other\n"
    text = printed(drawn(f"{calls}stream 7 | 0 500 | sgemm\nstream 7 | 800 1500 | sgemm"), 120)
    assert "The trace names no operator or call of the CPU, so it does" in " ".join(text.split())


def test_ranges_and_marks_of_steps_do_not_show_what_the_cpu_did() -> None:
    text = printed(
        drawn("""
        main     |   0 1600 | ProfilerStep#3
        main     |   0  900 | epoch | cat=annotation
        stream 7 |   0  500 | sgemm
        stream 7 | 800 1500 | sgemm
    """),
        120,
    )
    assert "Without the CPU's side the trace does not show why" in " ".join(text.split())
    assert "idle, cause unknown" in text
    assert "Stages" not in text


def test_a_trace_of_kernels_alone_does_not_say_what_the_cpu_did() -> None:
    text = printed(drawn("stream 7 | 0 500 | sgemm\nstream 7 | 800 1500 | sgemm"), 120)
    sentence = "idles 20%. Without the CPU's side the trace does not show why"
    assert sentence in " ".join(text.split())
    assert "idle, cause unknown" in text
    assert "launched nothing" not in text


def test_a_trace_of_kernels_alone_has_no_pattern_of_operators() -> None:
    step = "stream 7 | {0} {1} | sgemm\nstream 7 | {2} {3} | relu\nstream 7 | {4} {5} | softmax"
    steps = (step.format(*(100 * one + at for at in (0, 30, 30, 50, 60, 90))) for one in range(8))
    text = " ".join(printed(drawn("\n".join(steps)), 120).split())
    assert "steps are repeats of a pattern of kernels" in text
    assert "operators" not in text


def test_without_a_footer_the_report_ends_with_its_last_line() -> None:
    text = printed(drawn("main | 0 90 | ProfilerStep#0\nmain | 10 80 | aten::mm"), 100)
    assert text.endswith("by kind: gemm 100%\n")


def test_a_picture_asks_no_server_for_its_font() -> None:
    shown = picture([summarize(drawn(ONE))])
    assert 'url("http' not in shown
    assert "monospace" in shown
    assert "Stages" in shown


@pytest.mark.parametrize(("known", "states_step"), [(0.9, True), (0.002, False)])
def test_flops_of_a_step_are_stated_where_most_are_known(known: float, states_step: bool) -> None:
    found = Efficiency(2e9, 0.0, known, 1.5, 3.0, "", {}, None, None, None, "")
    out = io.StringIO()
    Console(file=out, width=200, color_system=None).print(*efficiency_parts(found))
    assert ("whole step" in out.getvalue()) is states_step
    assert ("too little for those of the step" in out.getvalue()) is not states_step


def test_of_many_modules_the_64_that_take_longest_are_shown() -> None:
    lines = ["main | 0 90000 | ProfilerStep#0"]
    for number in range(200):
        end = 100 * number + 10 + number % 5
        lines.append(f"main | {100 * number} {end} | nn.Module: M{number}_0")
        lines.append(f"main | {100 * number + 1} {end - 1} | aten::mm")
    shown = re.findall(r"^ *M(\d+)_0 ", printed(drawn("\n".join(lines)), 80), re.MULTILINE)
    assert len(shown) == 64
    assert {int(number) % 5 for number in shown} == {3, 4}
