"""Costs of source lines from a calling-context tree."""

from __future__ import annotations

import numpy as np

from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import ContextTree, build_contexts, line_totals, whole_ns
from stepscope.facts.contexts.metrics import METRICS, SampleStats
from stepscope.facts.timeline.source_lines import LineCost
from stepscope.testing import drawn_trace

FRAMES = """
    main     |  0 100 | ProfilerStep#1
    main     |  0 100 | train.py(9): main
    main     |  5  60 | train.py(20): step
    main     | 10  30 | aten::conv2d         | seq=1 fwd=0
    main     | 11  12 | cudaLaunchKernel     | corr=1
    main     | 35  55 | train.py(20): step
    main     | 40  50 | aten::relu
    autograd | 70  90 | ConvolutionBackward0 | seq=1 fwd=1
    autograd | 71  72 | cudaLaunchKernel     | corr=2
    stream 7 | 30  37 | winograd             | corr=1
    stream 7 | 80  91 | dgrad                | corr=2
"""


def totals() -> dict[int, LineCost]:
    tree = build_contexts(annotate(drawn_trace(FRAMES)))
    return {one.place.line: one for one in line_totals(tree)}


def test_a_line_includes_its_callees_and_their_backward() -> None:
    step = totals()[20]
    assert (step.place.file, step.place.name) == ("train.py", "step")
    assert (step.cpu_ns, step.backward_cpu_ns) == (55_000, 20_000)
    assert (step.device_ns, step.backward_device_ns) == (7_000, 11_000)


def test_a_line_that_calls_itself_counts_once() -> None:
    assert totals()[20].cpu_ns == 55_000  # the inner call's 20 µs are in the outer one's


def test_a_caller_includes_its_callees_and_its_own_time() -> None:
    found = totals()
    assert set(found) == {9, 20}
    assert (found[9].cpu_ns, found[9].own_cpu_ns) == (100_000, 45_000)
    assert found[9].backward_cpu_ns == 20_000
    assert found[9].device_ns == found[20].device_ns


def test_samples_show_the_time_of_python_itself() -> None:
    tree = build_contexts(annotate(drawn_trace(FRAMES)))
    step = tree.search("step", kind="python")[0]
    samples = SampleStats.of(np.array([step, step]), np.array([70_000, 5_000]), len(tree))
    metrics = {**tree.metrics, "sampled_real_ns": samples}
    known = {name: tree.metric(name) for name in tree.metrics}
    known["sampled_real_ns"] = METRICS["sampled_real_ns"]
    found = {one.place.line: one for one in line_totals(ContextTree(tree.nodes, metrics, known))}
    assert found[20].cpu_ns == found[9].cpu_ns == 75_000
    assert (found[20].device_ns, found[20].backward_device_ns) == (7_000, 11_000)


def test_the_line_that_starts_backward_has_its_time() -> None:
    tree = build_contexts(
        annotate(
            drawn_trace("""
        main     |  0 100 | ProfilerStep#1
        main     |  5  30 | train.py(20): forward
        main     | 10  30 | aten::conv2d         | seq=1 fwd=0
        main     | 40  95 | train.py(31): step
        main     | 42  94 | torch/autograd/graph.py(9): _engine_run_backward
        autograd | 50  90 | ConvolutionBackward0 | seq=1 fwd=1
    """)
        )
    )
    found = {one.place.line: one for one in line_totals(tree)}
    assert (found[31].cpu_ns, found[31].backward_cpu_ns) == (55_000 + 40_000, 0)
    assert (found[20].cpu_ns, found[20].backward_cpu_ns) == (25_000, 40_000)
    assert sum(whole_ns(tree)) >= found[31].cpu_ns


def test_a_tree_without_python_frames_has_no_lines() -> None:
    assert line_totals(build_contexts(annotate(drawn_trace("main | 0 9 | aten::mm")))) == []
