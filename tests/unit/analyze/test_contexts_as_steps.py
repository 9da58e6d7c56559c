"""Rules on a calling-context tree: the same findings, with the lines that the tree knows."""

from __future__ import annotations

import io
import textwrap
from typing import Any

import numpy as np
import pytest
from oracles.context_tree import checked
from rich.console import Console

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.analyze.analysis import analysis_of
from stepscope.analyze.findings_text import print_findings
from stepscope.analyze.trace_from_contexts import samples_instructions, trace_from_contexts
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import ContextTree, build_contexts
from stepscope.facts.contexts.build_tree import with_contexts
from stepscope.facts.contexts.metrics import SampleStats
from stepscope.testing import drawn_trace
from stepscope.trace.schema import CONTEXTS
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata, Trace

STEP = "\n".join(
    [
        "main | 0 2000 | train.py(7): step | cat=python",
        *(f"main | {at} {at + 2} | aten::item" for at in range(10, 1010, 10)),
        "main | 1100 1110 | aten::embedding | seq=5",
        "main | 1200 1800 | EmbeddingBackward0 | seq=5 fwd=1",
        "main | 1900 1910 | Optimizer.step#SGD.step",
    ]
)


def findings(tree: ContextTree) -> list[Finding]:
    return apply_rules(RuleContext(with_contexts(Trace({}), tree)), RULES)


def folded() -> dict[str, Finding]:
    tree = build_contexts(annotate(drawn_trace(STEP)))
    return {one.rule: one for one in findings(tree)}


def test_a_node_stands_for_all_its_calls() -> None:
    (place,) = folded()["synchronizing_calls"].evidence
    assert (place.name, place.count, place.ms) == ("aten::item", 100, pytest.approx(0.2))
    assert (place.file, place.line, place.function) == ("train.py", 7, "step")
    assert place.events == ()
    assert len(place.contexts) == 1


def test_a_tree_does_not_tell_what_the_loop_around_calls_costs() -> None:
    gain = folded()["synchronizing_calls"].gain
    assert gain.stated_ms == (pytest.approx(0.1), pytest.approx(2.6))  # half of the calls; the whole step
    assert gain.words == "the time of these calls alone; a loop around them may take more"


def test_backward_work_below_its_forward_call_is_compared_with_it() -> None:
    finding = folded()["forward_backward"]
    assert "The gradient of aten::embedding takes 0.6 ms" in finding.what
    assert finding.gain.changes == ()  # a simulation needs to know when things ran
    assert finding.gain.ms == pytest.approx(0.6 * (1 - 2 / 60))


@pytest.mark.parametrize(("device_us", "slow"), [(20, True), (249, True), (250, False), (900, False)])
def test_frames_whose_cpu_time_far_exceeds_their_device_time(device_us: int, slow: bool) -> None:
    text = f"""
        main     |   0 2000 | train.py(7): step | cat=python
        main     |  10  510 | aten::mm
        main     |  20   25 | cudaLaunchKernel | corr=1
        stream 7 | 600 {600 + device_us} | gemm | corr=1
        main     | 1900 1910 | Optimizer.step#SGD.step
    """
    tree = build_contexts(annotate(drawn_trace(text)))
    found = [one for one in findings(tree) if one.rule == "cpu_latency"]
    assert bool(found) == slow
    for finding in found:
        assert finding.gain.ms == pytest.approx(0.5 - device_us / 1000)
        assert finding.what == (
            f"Launching takes 0.5 ms per step for {device_us / 1000:.3g} ms of device work. "
            "Mostly in aten::mm in train.py:7 in step."
        )
        assert "torch.compile (mode='reduce-overhead'" in finding.advice
        assert len(finding.evidence) == 1
        assert finding.evidence[0].name == "aten::mm"
        assert finding.evidence[0].line == 7


@pytest.mark.parametrize("copy", ["CopyHostToDevice", "CopyDeviceToHost"])
def test_a_tree_does_not_show_that_a_call_lasts_until_its_copy_ends(copy: str) -> None:
    """AMD's names do not tell pinned memory, and a tree does not tell when the copy runs."""
    text = f"""
        main     |    0 2000 | train.py(7): step | cat=python
        main     |   10  510 | aten::mm
        main     |  520  530 | hipMemcpyAsync | corr=1
        stream 7 |  540  900 | {copy} | corr=1 cat=memcpy
        main     | 1900 1910 | Optimizer.step#SGD.step
    """
    rules = {one.rule for one in findings(build_contexts(annotate(drawn_trace(text))))}
    assert not rules & {"pageable_copies", "synchronizing_calls"}


def sampled(reasons: dict[str, int]) -> ContextTree:
    """A kernel of 800 us with samples of its instructions, next to one of 100 us."""
    rows: list[dict[str, Any]] = [
        {"parent": -1, "kind": "root", "name": "all"},
        {"parent": 0, "kind": "python", "name": "step", "file": "train.py", "line": 7},
        {"parent": 1, "kind": "operator", "name": "aten::to"},
        {"parent": 2, "kind": "kernel", "name": "convert"},
        *({"parent": 3, "kind": "instruction", "name": reason} for reason in reasons),
        {"parent": 2, "kind": "kernel", "name": "other"},
    ]
    columns = {name: [row.get(name, "") for row in rows] for name in ("kind", "name", "file")}
    via = ["launch" if row["kind"] == "kernel" else "call" for row in rows]
    nodes = Table(
        CONTEXTS,
        {
            **columns,
            "via": via,
            "parent": [row["parent"] for row in rows],
            "line": [row.get("line", -1) for row in rows],
        },
    )
    size, first = len(rows), 4
    stalls = np.array(list(reasons.values()))
    metrics = {
        "device_ns": SampleStats.of(np.array([3, size - 1]), np.array([800_000, 100_000]), size),
        "stalls": SampleStats.of(np.arange(first, first + len(stalls)), stalls, size),
    }
    return checked(ContextTree(nodes, metrics))


def tree_of(rows: list[dict[str, Any]], call_ns: dict[int, list[int]], **metrics: SampleStats) -> ContextTree:
    """A tree of rows (parent, kind, name, and file, line, via where they matter) with times of calls."""
    columns = {name: [row.get(name, "") for row in rows] for name in ("kind", "name", "file")}
    parent, line = [row["parent"] for row in rows], [row.get("line", -1) for row in rows]
    via = [row.get("via", "call") for row in rows]
    nodes = Table(CONTEXTS, {**columns, "via": via, "parent": parent, "line": line})
    at = np.repeat(list(call_ns), [len(times) for times in call_ns.values()])
    times = SampleStats.of(at, np.concatenate([*call_ns.values()]), len(rows))
    return checked(ContextTree(nodes, {"call_ns": times, **metrics}))


STEPS_OF_TREE: list[dict[str, Any]] = [
    {"parent": -1, "kind": "root", "name": "all"},
    {"parent": 0, "kind": "step", "name": "ProfilerStep#0"},
    {"parent": 1, "kind": "python", "name": "fit", "file": "train.py", "line": 7},
    {"parent": 2, "kind": "module", "name": "net", "file": "net.py", "line": 3},
    {"parent": 3, "kind": "operator", "name": "aten::mm"},
    {"parent": 4, "kind": "runtime", "name": "cudaLaunchKernel"},
    {"parent": 5, "kind": "kernel", "name": "sgemm", "via": "launch"},
    {"parent": 4, "kind": "operator", "name": "MmBackward0", "via": "backward"},
    {"parent": 7, "kind": "operator", "name": "aten::mm"},
    {"parent": 7, "kind": "kernel", "name": "sgemm", "via": "launch"},
    {"parent": 3, "kind": "native", "name": "relu", "file": "a.cpp", "line": 2},
    {"parent": 10, "kind": "operator", "name": "aten::relu"},
    {"parent": 2, "kind": "python", "name": "<built-in>"},
    {"parent": 2, "kind": "operator", "name": "Optimizer.step#SGD.step"},
    {"parent": 13, "kind": "operator", "name": "aten::add_"},
    {"parent": 13, "kind": "annotation", "name": "compilation of f"},
]
US = 1000
CALLED = {4: [30 * US] * 4, 5: [4 * US] * 4, 7: [50 * US] * 4, 8: [20 * US] * 4, 13: [41 * US] * 4}
CALLED |= {14: [5 * US, 5 * US, 5 * US, 6 * US], 15: [4 * US], 11: [3 * US] * 2}
WORKED = SampleStats.of(
    np.array([6] * 4 + [9] * 4), np.array([70 * US] * 4 + [80 * US] * 4), len(STEPS_OF_TREE)
)


def test_a_tree_as_events() -> None:
    """Four steps: the update has no line of its compilation; backward and kernels are on their own tracks."""
    tree = tree_of(STEPS_OF_TREE, CALLED, device_ns=WORKED)
    found = trace_from_contexts(tree, Metadata(framework="pytorch"))
    events, trace = found.trace.events, found.trace
    lines = []
    for row, node, calls in zip(events.rows(), found.node.tolist(), found.calls.tolist(), strict=True):
        facts = [row[name] for name in ("category", "stage", "kind", "module", "parent", "forward_event")]
        times = [row[name] / US for name in ("start_ns", "duration_ns", "self_ns")]
        lines.append(f"{node} {row['name']} × {calls:g} on {row['track']}: {facts} {times} of {row['step']}")
    assert "\n".join(lines) == textwrap.dedent(EVENTS_OF_TREE).strip()
    assert found.steps == 4
    launches = zip(
        trace["launches"]["cpu_event"].tolist(), trace["launches"]["device_event"].tolist(), strict=True
    )
    assert list(launches) == LAUNCHES_OF_TREE
    modules = (*map(trace["modules"].text, ("path", "name", "file")), trace["modules"]["line"].tolist())
    assert list(zip(*modules, trace["modules"]["parent"].tolist(), strict=True)) == MODULES_OF_TREE
    assert [list(trace["tracks"].text(name)) for name in ("kind", "name", "thread")] == [
        ["cpu", "cpu", "device"],
        ["calls", "autograd", "device"],
        ["calls", "autograd", "device"],
    ]
    assert trace["tracks"]["device"].tolist() == trace["tracks"]["stream"].tolist() == [-1, -1, 0]
    assert [row["evidence"] for row in trace["steps"].rows()] == ["whole_trace"]
    bounds = ("start_ns", "end_ns", "window_start_ns", "window_end_ns")
    assert [trace["steps"][name].tolist() for name in bounds] == STEP_OF_TREE
    assert trace.metadata.framework == "pytorch"
    assert not samples_instructions(tree)


EVENTS_OF_TREE = """
1 ProfilerStep#0 × 4 on 0: ['annotation', 'forward', None, None, None, None] [0.0, 286.0, 0.0] of 0
2 train.py(7): fit × 4 on 0: ['python', 'forward', None, None, 0, None] [0.0, 286.0, 0.0] of 0
3 net × 4 on 0: ['python', 'forward', None, 0, 1, None] [0.0, 126.0, 0.0] of 0
4 aten::mm × 4 on 0: ['cpu_op', 'forward', None, 0, 2, None] [0.0, 120.0, 104.0] of 0
5 cudaLaunchKernel × 4 on 0: ['runtime', 'forward', None, 0, 3, None] [0.0, 16.0, 16.0] of 0
6 sgemm × 4 on 2: ['kernel', 'forward', 'gemm', 0, None, None] [0.0, 280.0, 280.0] of 0
10 relu × 2 on 0: ['python', 'forward', None, 0, 2, None] [120.0, 6.0, 0.0] of 0
11 aten::relu × 2 on 0: ['cpu_op', 'forward', None, 0, 6, None] [120.0, 6.0, 6.0] of 0
12 <built-in> × 0 on 0: ['python', 'forward', None, None, 1, None] [126.0, 0.0, 0.0] of 0
13 Optimizer.step#SGD.step × 4 on 0: ['cpu_op', 'optimizer', None, None, 1, None] [126.0, 160.0, 139.0] of 0
14 aten::add_ × 4 on 0: ['cpu_op', 'optimizer', None, None, 9, None] [126.0, 21.0, 21.0] of 0
9 sgemm × 4 on 2: ['kernel', 'backward', 'gemm', 0, None, None] [280.0, 320.0, 320.0] of 0
7 MmBackward0 × 4 on 1: ['cpu_op', 'backward', None, 0, None, 3] [286.0, 200.0, 120.0] of 0
8 aten::mm × 4 on 1: ['cpu_op', 'backward', None, 0, 12, None] [286.0, 80.0, 80.0] of 0
"""
LAUNCHES_OF_TREE = [(4, 5), (12, 11)]
MODULES_OF_TREE = [("net", "net", "net.py", 3, -1)]
STEP_OF_TREE = [[0], [600_000], [0], [600_000]]


def test_compilation_is_no_part_of_the_calls_around_it() -> None:
    rows: list[dict[str, Any]] = [
        {"parent": -1, "kind": "root", "name": "all"},
        {"parent": 0, "kind": "python", "name": "step", "file": "train.py", "line": 7},
        {"parent": 1, "kind": "operator", "name": "CompiledFunction"},
        {"parent": 2, "kind": "operator", "name": "CompiledFunctionBackward", "via": "backward"},
        {"parent": 3, "kind": "annotation", "name": "compilation of f"},
        {"parent": 4, "kind": "annotation", "name": "lowering of f"},
        {"parent": 1, "kind": "operator", "name": "Optimizer.step#SGD.step"},
    ]
    ms = 10**6
    calls = {2: [ms] * 10, 3: [5002 * ms] + [2 * ms] * 9, 4: [5000 * ms], 5: [3000 * ms], 6: [ms] * 10}
    context = RuleContext(with_contexts(Trace({}), tree_of(rows, calls)))
    assert context.measures.step_ms == pytest.approx(1 + 2 + 1)
    assert not [one for one in apply_rules(context, RULES) if one.rule == "forward_backward"]


def test_a_kernel_stalls_over_all_contexts_that_launch_it() -> None:
    """Its parts are below 10 % of the device time each, and CPU times of sampling mean nothing."""
    rows: list[dict[str, Any]] = [{"parent": -1, "kind": "root", "name": "all"}]
    device, stalls = {}, {}
    for layer in range(12):
        call = len(rows)
        rows += [
            {"parent": 0, "kind": "python", "name": "forward", "file": "net.py", "line": 10 + layer},
            {
                "parent": call,
                "kind": "python",
                "name": "conv",
                "file": "torch/nn/modules/conv.py",
                "line": 548,
            },
            {"parent": call + 1, "kind": "operator", "name": "aten::conv2d"},
            {"parent": call + 2, "kind": "kernel", "name": "wgrad", "via": "launch"},
            {"parent": call + 3, "kind": "instruction", "name": "selected"},
            {"parent": call + 3, "kind": "instruction", "name": "long_scoreboard"},
        ]
        device[call + 3] = 1000 * (1 + layer)
        stalls[call + 4], stalls[call + 5] = 40, 60
    size = len(rows)

    def values(of: dict[int, int]) -> SampleStats:
        return SampleStats.of(np.array(list(of)), np.array(list(of.values())), size)

    launching = {row: [10**9] for row in range(size) if rows[row]["kind"] == "operator"}
    tree = tree_of(rows, launching, device_ns=values(device), stalls=values(stalls))
    (finding,) = findings(tree)
    assert finding.rule == "stall_reasons"
    assert "wgrad stalls mainly on long_scoreboard. By samples: long_scoreboard 60%" in finding.what
    assert "another algorithm" in finding.advice  # nothing is fused with a convolution of a library
    assert finding.gain.ms == pytest.approx(0.6 * 0.078)
    assert {place.file for place in finding.evidence} == {"net.py"}
    assert finding.step_ms == pytest.approx(0.078)


def compiled_again(file: str) -> Trace:
    """A function of JAX, defined in a file or else JAX's own, that is compiled three times."""
    rows: list[dict[str, Any]] = [
        {"parent": -1, "kind": "root", "name": "all"},
        {"parent": 0, "kind": "python", "name": "main", "file": "train.py", "line": 7},
        {"parent": 1, "kind": "operator", "name": "jit(f)", "file": file, "line": 3},
        {"parent": 2, "kind": "annotation", "name": "compilation of f, again: new shape of x"},
    ]
    nodes = Table(
        CONTEXTS,
        {
            **{name: [row.get(name, "") for row in rows] for name in ("kind", "name", "file")},
            "via": ["call"] * len(rows),
            "parent": [row["parent"] for row in rows],
            "line": [row.get("line", -1) for row in rows],
        },
    )
    times = SampleStats.of(np.array([3, 3, 3]), np.full(3, 50_000_000), len(rows))
    tree = checked(ContextTree(nodes, {"call_ns": times}))
    return with_contexts(Trace({}), tree).with_metadata(framework="jax")


@pytest.mark.parametrize(
    ("file", "what", "advice"),
    [
        ("train.py", "jax.jit recompiled 3 times, 150 ms in total", "Pad batches"),
        ("", "Operations outside jax.jit were compiled again 3 times", "jax.jit(model.init)"),
    ],
)
def test_what_jax_compiles_again_is_the_users_or_its_own(file: str, what: str, advice: str) -> None:
    (finding,) = apply_rules(RuleContext(compiled_again(file)), RULES)
    assert finding.what.startswith(what)
    assert advice in finding.advice


def test_times_of_a_whole_run_of_jax_are_not_called_those_of_a_step() -> None:
    context = RuleContext(compiled_again("train.py"))
    out = io.StringIO()
    print_findings(Console(file=out, width=200), analysis_of(context, RULES))
    assert "150.0 ms in all" in out.getvalue()
    assert "ms per run" in out.getvalue()
    assert "step" not in out.getvalue()


def test_the_reasons_that_a_hot_kernel_stalls_for() -> None:
    tree = sampled({"smsp__pcsamp_constant_miss": 60, "math_dependency": 30, "selected": 10})
    (finding,) = [one for one in findings(tree) if one.rule == "stall_reasons"]
    assert finding.what == (
        "convert stalls mainly on smsp__pcsamp_constant_miss. By samples: smsp__pcsamp_constant_miss 60%, "
        "math_dependency 30%, selected 10%."
    )
    assert "constants" in finding.advice
    assert finding.gain.ms == pytest.approx(0.8 * 0.6)
    assert {(place.file, place.line) for place in finding.evidence} == {("train.py", 7)}
    places = [(place.name, place.count, round(place.ms, 6), place.function) for place in finding.evidence]
    assert places == [("smsp__pcsamp_constant_miss", 60, 0.48, "step"), ("convert", 1, 0.8, "step")]


REASONS = {
    "imc_miss": "Each block loads constants again",
    "constant": "Each block loads constants again",
    "math_pipe": "Use vector loads and conversions",
    "Stall_Math": "Use vector loads and conversions",
    "long_scoreboard": "It waits for memory: fuse it",
    "waitcnt": "It waits for memory: fuse it",
    "alu_dependency": "It waits for its own results",
    "ex_stall": "It saturates a pipeline",
    "lg_throttle": "It makes more memory requests than fit",
    "memory_dependency": "It waits for memory: fuse it",
    "short_scoreboard": "It waits for shared memory or special functions",
    "mio_throttle": "It saturates shared memory or special functions",
    "no_instruction": "It waits for instructions",
    "branch_resolving": "It branches often",
    "drain": "It waits for its last stores",
    "barrier": "Its threads wait for each other",
    "sleeping": "It calls an explicit sleep",
    "unheard_of": "See the device's profiler guide for this reason.",
}


@pytest.mark.parametrize("reason", REASONS)
def test_each_reason_has_its_advice(reason: str) -> None:
    (finding,) = [one for one in findings(sampled({reason: 60, "b": 40})) if one.rule == "stall_reasons"]
    assert finding.advice.startswith(REASONS[reason])


@pytest.mark.parametrize("reason", ["selected", "not_selected", "reason not recorded"])
def test_a_warp_that_waits_for_nothing_does_not_stall(reason: str) -> None:
    assert not [one for one in findings(sampled({reason: 60, "b": 40})) if one.rule == "stall_reasons"]


@pytest.mark.parametrize(
    ("counts", "says"),
    [
        ([30, 29, 21, 20], "By samples: r0 30%, r1 29%, r2 21%."),
        ([29, 28, 22, 21], ""),
        ([40, 0, 60], "By samples: r2 60%, r0 40%."),
    ],
)
def test_the_most_frequent_reason_has_30_percent_of_the_samples(counts: list[int], says: str) -> None:
    tree = sampled({f"r{number}": count for number, count in enumerate(counts) if count})
    found = [one for one in findings(tree) if one.rule == "stall_reasons"]
    assert [one.what.partition(". ")[2] for one in found] == [says] * bool(says)


def test_a_kernel_whose_warps_mostly_issue_is_no_finding() -> None:
    tree = sampled({"selected": 60, "long_scoreboard": 40})
    assert not [one for one in findings(tree) if one.rule == "stall_reasons"]


def test_many_reasons_of_which_none_stands_out_are_no_finding() -> None:
    tree = sampled({"a": 25, "b": 25, "c": 25, "d": 25})
    assert not [one for one in findings(tree) if one.rule == "stall_reasons"]


def test_a_tree_knows_nothing_about_python_between_operators() -> None:
    """Positions in a tree say nothing about when an event ran."""
    text = "main | 0 9000 | Optimizer.step#SGD.step\nmain | 10 8000 | aten::add"
    tree = build_contexts(annotate(drawn_trace(text)))
    assert not [one for one in findings(tree) if one.rule == "cpu_latency"]
