"""What the page is told of a drawn trace, question by question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from serving import ask, opened

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError
from stepscope.faces.page import timeline_answers
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import ROUTES, answer
from stepscope.faces.page.trace_view import TraceView

MODEL = {
    "name": "net",
    "class": "Net",
    "file": "/p/net.py",
    "line": 3,
    "call_file": "/p/train.py",
    "call_line": 20,
    "children": [{"name": "fc", "class": "Linear", "call_file": "/p/net.py", "call_line": 9}],
}
NET = """
    main     |   0 100 | ProfilerStep#1
    main     |  10  60 | stepscope.module:
    main     |  20  50 | stepscope.module: fc
    main     |  22  40 | aten::linear     | seq=1 fwd=0
    main     |  31  33 | cudaLaunchKernel | corr=1
    autograd |  70  90 | AddmmBackward0   | seq=1 fwd=1
    stream 7 |  40  60 | sgemm            | corr=1
"""


@pytest.fixture
def trace() -> TraceView:
    return opened()


@pytest.fixture
def net() -> TraceView:
    return opened(NET, MODEL)


def event(trace: TraceView, name: str) -> int:
    return list(trace.trace.events.text("name")).index(name)


# -- overview


def test_one_begins_with_the_slowest_step(trace: TraceView) -> None:
    found = ask(trace, "overview")
    assert (found["start"], found["rank"], found["ranks"]) == ("s1.0", 0, [0])
    keys = ("id", "runtime_ns", "device_busy_ns", "device_idle_ns")
    assert [tuple(one[key] for key in keys) for one in found["steps"]] == [
        ("s1.0", 100_000, 45_000, 55_000),
        ("s2.0", 30_000, 0, 30_000),
    ]


def test_the_overview_is_the_report(trace: TraceView) -> None:
    from stepscope.facts.summary.report_facts import summarize

    facts = msgspec.to_builtins(summarize(trace.trace))
    told = ask(trace, "overview")["facts"]
    left_out = ("modules", "at_once", "kernels", "counters")  # in other answers
    assert told == {name: facts[name] for name in facts if name not in left_out}


def test_the_overview_of_one_step(trace: TraceView) -> None:
    assert ask(trace, "overview", step=2)["facts"]["steps"]["numbers"] == [2]


# -- timeline


def test_levels_lead_from_the_steps_to_an_operation(trace: TraceView) -> None:
    told = ask(trace, "levels", path="s1.0/t0")
    assert [one["name"] for one in told["levels"]] == ["trace", "step 1", "forward"]
    assert ask(trace, "level", path="s1.0/t0")["level"] == told["levels"][-1]


def test_the_levels_inside_a_level_can_be_asked_for_ahead(net: TraceView) -> None:
    ahead = ask(net, "levels_inside", path="s1.0")["levels"]
    assert [one["name"] for one in ahead] == ["forward"]
    for level in ahead:
        assert ask(opened(NET, MODEL), "level", path=level["path"])["level"] == level


def test_an_operation_that_is_one_event_does_not_open(trace: TraceView) -> None:
    level = ask(trace, "level", path="s1.0/t0")["level"]
    names = [level["strings"][code] for code in level["operations"]["name"]]
    assert list(zip(names, level["operations"]["opens"], strict=True)) == [
        ("aten::conv2d", 1),
        ("aten::relu", 0),
    ]


def test_the_place_of_an_event(trace: TraceView) -> None:
    kernel = event(trace, "winograd")
    told = ask(trace, "path", event=kernel)
    assert told["path"].startswith("s1.0/t0/")
    assert told["level"] == told["path"].rpartition("/")[0]
    assert told["event"] == kernel


def test_a_search_marks_all_levels(trace: TraceView) -> None:
    told = ask(trace, "search", text="conv2d", path="s2.0")
    assert told["total"] == 2
    assert told["levels"][0] == {"path": "", "hits": [1, 1]}


def test_a_search_lists_every_hit_in_order_with_totals_by_name(trace: TraceView) -> None:
    told = ask(trace, "search_hits", text="conv2d")
    assert told["total"] == 2
    assert told["names"] == [
        {
            "name": "aten::conv2d",
            "short": "aten::conv2d",
            "category": "cpu_op",
            "count": 2,
            "total_ns": 29_000,
            "least_ns": 14_000,
            "most_ns": 15_000,
            "longest_event": 2,
        }
    ]
    hits = told["events"]
    assert hits["event"][0] == 2
    assert (hits["name"], hits["step"], hits["rank"]) == ([0, 0], [1, 2], [0, 0])
    assert hits["track"] == [0, 0]
    assert hits["duration_ns"] == [15_000, 14_000]
    assert hits["start_ns"] == sorted(hits["start_ns"])


def test_names_with_most_time_come_first_and_nothing_may_be_found(trace: TraceView) -> None:
    told = ask(trace, "search_hits", text="a")
    times = [one["total_ns"] for one in told["names"]]
    assert times == sorted(times, reverse=True)
    assert sum(one["count"] for one in told["names"]) == told["total"] == len(told["events"]["name"])
    names = [told["names"][at]["name"] for at in told["events"]["name"]]
    recorded = trace.trace.events.text("name")
    assert names == [recorded[event] for event in told["events"]["event"]]
    assert ask(trace, "search_hits", text="no such name")["names"] == []


def test_of_too_many_hits_the_longest_are_listed(trace: TraceView, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_answers, "_MOST", 1)
    told = ask(trace, "search_hits", text="conv2d")
    assert (told["total"], told["names"][0]["count"]) == (2, 2)
    assert told["events"]["duration_ns"] == [15_000]


def test_the_raw_events_of_one_event(trace: TraceView) -> None:
    told = ask(trace, "trace", path="s1.0/t0/e2")["traceEvents"]
    names = [one["name"] for one in told if one["ph"] == "X"]
    assert names == ["aten::conv2d", "cudaLaunchKernel", "winograd"]


# -- tables


def test_kernels_are_listed_by_their_time(trace: TraceView) -> None:
    told = ask(trace, "kernels", step=1)
    assert (told["are"], told["steps"]) == ("kernels", [1])
    first, second = told["rows"]
    assert (first["name"], first["total_ms"], first["stages"]) == ("winograd", 0.03, {"forward": 1})
    assert (first["occupancy"], first["longest_event"]) == (0.25, event(trace, "winograd"))
    assert (second["name"], second["stages"], second["occupancy"]) == ("dgrad", {"backward": 1}, None)
    assert (first["of_peak"], first["limit"]) == (None, "")


def test_kernels_tell_how_near_they_come_to_the_device() -> None:
    shapes = 'Input_Dims=[[512,512],[512,512]] Input_type=["float","float"]'
    text = f"""
        main     |  0 100 | ProfilerStep#1
        main     |  5  20 | aten::mm | {shapes}
        main     |  6   8 | cudaLaunchKernel | corr=1
        stream 7 | 30  70 | sgemm | corr=1
    """
    told = ask(opened(text, devices=({"id": 0, "name": "NVIDIA A100"},)), "kernels")
    (row,) = told["rows"]
    tflops = 2 * 512**3 / 40e-6 / 1e12
    assert row["tflops"] == pytest.approx(tflops)
    assert row["of_peak"] == pytest.approx(tflops / 19.5)
    assert row["limit"] == "compute"
    assert told["roofs"] == {"device": "A100", "gbytes": 1555, "tflops": {"fp32": 19.5}}
    assert ask(opened(text), "kernels")["roofs"] is None


def test_the_model_tree_names_the_modules_of_each_node(net: TraceView) -> None:
    (root,) = ask(net, "modules")["tree"]
    (inner,) = root["children"]
    assert (root["kind"], root["modules"], root["call_line"]) == ("Net", [0], 20)
    assert (inner["name"], inner["modules"], inner["forward_device_ms"]) == ("fc", [1], 0.02)


def test_shares_of_modules_are_of_the_step_and_the_rest_of_it_is_known() -> None:
    text = """
        main |  0 100 | ProfilerStep#1
        main | 10  15 | stepscope.module:
        main | 11  14 | aten::mm
    """
    found = ask(opened(text, {"name": "net", "class": "Net"}), "modules")
    (root,) = found["tree"]
    times = found["step_ms"], root["forward_cpu_ms"], found["rest_cpu_ms"]
    assert times == pytest.approx((0.1, 0.005, 0.095))
    assert found["rest_device_ms"] == 0


def test_copies_of_a_block_can_be_told_apart() -> None:
    block = {"class": "Block", "children": [{"name": "fc", "class": "Linear"}]}
    model = {"name": "net", "class": "Net", "children": [{**block, "name": str(i)} for i in range(3)]}
    lines = "\n".join(f"main | {10 * i + 1} {10 * i + 5 + i} | stepscope.module: {i}" for i in range(3))
    trace = opened(f"main | 0 100 | ProfilerStep#1\nmain | 0 90 | stepscope.module:\n{lines}", model)
    (root,) = ask(trace, "modules")["tree"]
    (folded,) = root["children"]
    assert (folded["name"], folded["count"], folded["modules"]) == ("0 … 2", 3, [1, 3, 5])
    assert [(one["name"], one["forward_cpu_ms"]) for one in folded["copies"]] == [
        ("0", 0.004),
        ("1", 0.005),
        ("2", 0.006),
    ]


# -- details


def test_details_of_an_operator(trace: TraceView) -> None:
    told = ask(trace, "details", path="s1.0/t0/e2")
    assert (told["name"], told["category"], told["stage"]) == ("aten::conv2d", "cpu_op", "forward")
    assert (told["cpu_ns"], told["device_ns"], told["bound_by"]) == (15_000, 30_000, "device")
    assert told["arguments"] == {"Input Dims": [[4, 3]]}
    assert told["backward"] == {"event": event(trace, "ConvolutionBackward0"), "name": "ConvolutionBackward0"}
    assert told["launch"] is None
    (work,) = told["device_work"]["rows"]
    assert (work["name"], work["stream"], work["delay_ns"]) == ("winograd", 7, 24_000)
    assert told["kernel"]["grid"] == [8, 1, 1]
    assert told["kernel"]["occupancy"] == 0.25


def test_the_instances_of_an_operator_are_all_of_its_name(trace: TraceView) -> None:
    told = ask(trace, "details", path="s1.0/t0/e2")["instances"]
    assert {name: told[name] for name in ("of", "side", "count", "least_ns", "most_ns")} == {
        "of": "aten::conv2d",
        "side": "cpu",
        "count": 2,
        "least_ns": 14_000,
        "most_ns": 15_000,
    }
    assert told["shapes"] == [{"shapes": "[[4, 3]]", "count": 2, "mean_ns": 14_500}]
    assert [(row["step"], row["duration_ns"]) for row in told["rows"]] == [(1, 15_000), (2, 14_000)]


def test_details_of_a_kernel_tell_its_launch_and_its_stream(trace: TraceView) -> None:
    kernel = event(trace, "winograd")
    told = ask(trace, "details", path=ask(trace, "path", event=kernel)["path"])
    assert told["launch"] == {"event": 3, "name": "cudaLaunchKernel", "delay_ns": 24_000}
    assert told["track"]["stream"] == 7
    assert told["device_work"] == {"count": 0, "rows": []}
    assert told["instances"]["side"] == "device"
    assert (told["start_ns"], told["cpu_ns"], told["device_ns"]) == (30_000, 0, 30_000)


def test_details_of_a_stage_and_of_a_step(trace: TraceView) -> None:
    stage = ask(trace, "details", path="s1.0/t0")
    assert (stage["kind"], stage["instances"]["of"], stage["instances"]["count"]) == ("stage", "forward", 2)
    step = ask(trace, "details", path="s1.0")
    assert (step["kind"], step["instances"]["count"], step["events"]) == ("step", 2, 10)
    assert (step["forward"], step["backward"], step["stage"]) == (None, None, None)


def test_details_of_a_call_lead_to_its_source(net: TraceView) -> None:
    told = ask(net, "details", path=ask(net, "path", event=event(net, "aten::linear"))["path"])
    assert [(one["file"], one["line"], one["what"]) for one in told["source"]] == [
        ("/p/net.py", 9, "call"),
        ("/p/train.py", 20, "call"),
        ("/p/net.py", 3, "class"),
    ]
    assert told["selects"] == {
        "modules": [1],
        "kernels": ["sgemm"],
        "lines": [{"file": "/p/net.py", "line": 9}],
    }


# -- one selection for all


@pytest.mark.parametrize(
    ("query", "title", "total", "hits"),
    [
        ({"module": 1}, "fc", 5, [5]),
        ({"kernel": "sgemm"}, "sgemm", 1, [1]),
        ({"file": "/p/net.py", "line": 9}, "net.py:9", 5, [5]),
        ({"event": 3}, "aten::linear", 1, [1]),
    ],
)
def test_whatever_is_chosen_is_shown_everywhere(
    net: TraceView, query: dict[str, Any], title: str, total: int, hits: list[int]
) -> None:
    told = ask(net, "select", **query)
    assert (told["title"], told["total"]) == (title, total)
    assert told["levels"] == [{"path": "", "hits": hits}]
    assert told["modules"] == [1]
    assert told["lines"] == [{"file": "/p/net.py", "line": 9}]
    assert told["target"]["path"].startswith("s1.0/")


def test_a_selection_leads_to_its_longest_event_in_the_step_on_screen() -> None:
    model = {"name": "net", "class": "Net"}
    trace = opened(
        """
        main |   0 100 | ProfilerStep#1
        main |   0  50 | stepscope.module:
        main |   1  49 | aten::mm
        main | 100 130 | ProfilerStep#2
        main | 101 120 | stepscope.module:
        main | 102 110 | aten::mm
        """,
        model,
    )
    for path, step in (("s1.0", "s1.0"), ("s2.0", "s2.0"), ("", "s1.0")):
        assert ask(trace, "select", module=0, path=path)["target"]["path"].startswith(f"{step}/")


# -- source


def test_the_files_that_a_trace_names(net: TraceView) -> None:
    files = ask(net, "sources")["files"]
    assert [(one["file"], one["readable"]) for one in files] == [("/p/train.py", False), ("/p/net.py", False)]


def test_files_of_installed_packages_come_after_the_users(tmp_path: Path) -> None:
    files = [tmp_path / "train.py", tmp_path / "site-packages" / "library.py"]
    inner = {"name": "fc", "class": "Linear", "call_file": str(files[0]), "call_line": 1}
    outer = {"name": "net", "class": "Net", "file": str(files[1]), "line": 1}
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("pass\n")
    files_of_trace = ask(opened(NET, {**outer, "children": [inner]}), "sources")["files"]
    assert [one["file"] for one in files_of_trace] == [str(file) for file in files]


def test_a_file_that_is_not_here_still_tells_what_its_lines_cost(net: TraceView) -> None:
    told = ask(net, "source", file="/p/net.py")
    assert (told["text"], told["reason"]) == (None, "the file is not on this machine")
    assert [(one["line"], one["what"], one["device_ms"]) for one in told["lines"]] == [
        (3, "class", 0.02),
        (9, "call", 0.02),
    ]


def test_the_share_of_a_line_is_that_of_the_step(net: TraceView) -> None:
    (line,) = ask(net, "source", file="/p/train.py")["lines"]
    assert line["cpu_ms"] == pytest.approx(0.05)
    assert line["backward_cpu_ms"] == pytest.approx(0.02)
    assert line["share"] == pytest.approx(0.5)  # of 100 us


def test_no_file_is_served_that_the_trace_does_not_name(net: TraceView) -> None:
    for file in ("/etc/passwd", "/p/../etc/passwd", "net.py", ""):
        with pytest.raises(ServeError, match="this trace does not name the file"):
            ask(net, "source", file=file)


# -- all of them


def test_a_question_of_another_name_is_refused(trace: TraceView) -> None:
    with pytest.raises(ServeError, match=r"expected one of overview, .* found 'delete'"):
        answer(trace, "delete", Query())


# About what this trace does not have.
OTHERS = {name for name in ROUTES if name.startswith("memory")}
OTHERS |= {"select", "path", "source", "diff", "pair", "query"}


@pytest.mark.parametrize("name", [name for name in ROUTES if name not in OTHERS])
def test_every_answer_is_plain_json(trace: TraceView, name: str) -> None:
    told = ask(trace, name, path="s1.0")
    assert json.loads(json_bytes(told)) == json.loads(json.dumps(told))


def test_a_trace_without_steps_has_one_empty_level() -> None:
    trace = opened("")
    (level,) = ask(trace, "levels")["levels"]
    assert (trace.start, level["operations"]["id"]) == ("", [])


def test_gains_are_shares_of_the_step_without_delays() -> None:
    steps, now = list[str](), 0
    for step in range(6):
        begin = now
        for call in range(60):
            us = 50_000 if (step, call) == (3, 30) else 4
            steps.append(f"main | {now + 10} {now + 10 + us} | aten::tanh | stage=forward")
            now += 10 + us
        steps.append(f"main | {begin} {now} | ProfilerStep#{step}")
    found = ask(opened("\n".join(steps)), "findings")
    assert found["findings"]
    assert found["steady_ms"] < 0.9 * found["step_ms"]
    for one in found["findings"]:
        assert one["share"] == pytest.approx(one["gain_ms"] / found["steady_ms"])


@pytest.mark.parametrize(
    ("launches", "says"),
    [
        ("", "No issue worth 1 % or more of the step."),
        (
            "\n".join(f"main | {at} {at + 2} | cudaLaunchKernel | corr={at}" for at in range(50, 90, 5)),
            "Without all device work no finding is certain.",
        ),
    ],
    ids=["all is there", "work is missing"],
)
def test_where_nothing_is_found_the_page_says_what_the_command_says(launches: str, says: str) -> None:
    text = f"""
        main     |  0 100 | ProfilerStep#1
        main     |  1   3 | cudaLaunchKernel | corr=1
        stream 7 |  4  90 | sgemm | corr=1
        {launches}
        main     | 91  92 | cudaLaunchKernel | corr=2
        stream 7 | 93  99 | sgemm | corr=2
    """
    found = ask(opened(text), "findings")
    assert (found["findings"], found["nothing"]) == ([], says)
