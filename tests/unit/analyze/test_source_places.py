"""Names for readers, and the places of events: groups by name, stage, module and line."""

from __future__ import annotations

import numpy as np
import pytest
from drawn_findings import repeated

from stepscope.analyze.source_places import (
    CompiledLine,
    CompiledSources,
    PlaceFinder,
    are_of_pytorch,
    plain_name,
    what_is_called,
)
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

NODE = "autograd::engine::evaluate_function:"


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("aten::mm", "aten::mm"),
        ("ProfilerStep#3", "the training loop"),
        ("stepscope.step#3", "the training loop"),
        ("train#step_num=3", "the training loop"),
        ("train#step_num=3 more", "train#step_num=3 more"),
        ("RegisterPostBackwardFunctionBackward", "FSDP's post-backward hook"),
        ("FSDP::_post_backward_reshard", "FSDP's post-backward hook"),
        ("FSDP::PostBackward", "FSDP's post-backward hook"),
        ("RegisterPreBackwardHooks", "FSDP's pre-backward hook"),
        ("FSDP::_pre_backward", "FSDP's pre-backward hook"),
        ("FSDP::PreBackward", "FSDP's pre-backward hook"),
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "the DataLoader"),
        (f"{NODE} torch::autograd::AccumulateGrad", "gradient accumulation"),
        ("torch::autograd::CopyBackwards", "the gradient of a copy"),
        ("Optimizer.step#SGD.step", "SGD.step"),
        ("Optimizer.zero_grad#SGD.zero_grad", "SGD.zero_grad"),
        ("stepscope.optimizer: Adam", "Adam"),
        ("nn.Module: Linear_0", "Linear_0"),
        ("## forward ##", "forward"),
        ("# forward", "forward"),
        ("stepscope.module: net.a", "net.a"),
        ("stepscope.module:", "the model"),
        ("train.py(7): main", "train.py:7 in main"),
        ("stepscope.block: step (/x/train (1).py:9)", "a block without gradients in step"),
        ("stepscope.evaluation: step (train.py:9)", "evaluation in step"),
        ("stepscope.checkpointing: save (train.py:9)", "checkpointing in save"),
    ],
)
def test_names_for_the_reader(name: str, plain: str) -> None:
    assert plain_name(name) == plain


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("/me/save/train.py(9): step", "step"),
        ("torch/serialization.py(9): save", "torch/serialization.py(9): save"),
        ("stepscope.evaluation: fit (evaluate/train.py:9)", "stepscope.evaluation: fit"),
        ("stepscope.block: fit (x.py:9)", "stepscope.block: fit"),
        ("save_model", "save_model"),
    ],
)
def test_what_a_name_calls(name: str, called: str) -> None:
    assert what_is_called(name) == called


STEP = f"""
    main     | 10 300 | /x/train.py(7): fit | cat=python
    main     | 20 100 | aten::mm | seq=1
    main     | 30 40  | cudaLaunchKernel | corr=1
    stream 7 | 50 90  | sgemm | corr=1
    main     | 110 150 | aten::mm | seq=2
    main     | 310 400 | stepscope.lines: /x/net.py:9 | cat=cpu_op
    main     | 320 390 | aten::mm
    main     | 410 480 | stepscope.evaluation: check (/x/eval.py:12)
    main     | 420 470 | aten::mm
    main     | 500 540 | torch/nn/linear.py(9): forward | cat=python
    main     | 510 530 | aten::mm
    main     | 600 650 | {NODE} MmBackward0 | seq=1 fwd=1
    main     | 700 750 | {NODE} MmBackward0 | seq=7 fwd=1
    main     | 900 910 | Optimizer.step#SGD.step
"""


def finder(text: str) -> tuple[PlaceFinder, Trace]:
    trace = annotate(drawn_trace(text))
    return PlaceFinder(trace), trace


def rows_of(trace: Trace, *names: str) -> np.ndarray:
    return np.flatnonzero(trace.events.text("name").mask(*names))


def test_events_have_the_places_that_caused_them() -> None:
    places, trace = finder(repeated(STEP))
    rows = rows_of(trace, "aten::mm", "sgemm", f"{NODE} MmBackward0", "ProfilerStep#0", "ProfilerStep#1")
    found = [
        (one.name.rpartition(" ")[2], one.stage, one.code, one.count, round(one.ms, 6), len(one.events))
        for one in places.of(rows, 2)
    ]
    assert found == [
        ("ProfilerStep#0", "", "", 1.0, 1.0, 2),  # the ranges of all steps are one
        ("aten::mm", "forward", "/x/train.py:7 in fit", 2.0, 0.12, 4),
        ("aten::mm", "forward", "/x/net.py:9", 1.0, 0.07, 2),
        ("aten::mm", "evaluation", "/x/eval.py:12 in check", 1.0, 0.05, 2),
        ("MmBackward0", "backward", "", 1.0, 0.05, 2),
        ("MmBackward0", "backward", "/x/train.py:7 in fit", 1.0, 0.05, 2),
        ("sgemm", "forward", "/x/train.py:7 in fit", 1.0, 0.04, 2),
        ("aten::mm", "forward", "", 1.0, 0.02, 2),
    ]
    assert places.of(rows[:0], 2) == ()
    weights = np.arange(len(trace.events), dtype=np.float64)
    (weighted,) = places.of(rows_of(trace, "sgemm"), 2, weights)
    assert weighted.count == weights[rows_of(trace, "sgemm")].sum() / 2


def test_calls_within_calls_of_the_same_place_take_no_time_of_their_own() -> None:
    trace = annotate(
        drawn_trace("""
        main | 10 60 | call
        main | 20 50 | other
        main | 30 40 | call
    """)
    )
    rows = np.flatnonzero(trace.events.text("name").mask("call"))
    (place,) = PlaceFinder(trace).of(rows, 1)
    assert (place.count, place.ms) == (2, 0.05)


def test_work_beside_work_of_the_same_place_takes_no_time_of_its_own() -> None:
    trace = annotate(
        drawn_trace("""
        main | 0 100 | ProfilerStep#0
        stream 1 | 10 60 | kernel | cat=kernel
        stream 2 | 20 80 | kernel | cat=kernel
        stream 2 | 90 95 | kernel | cat=kernel
    """)
    )
    (place,) = PlaceFinder(trace).of(np.flatnonzero(trace.events.text("name").mask("kernel")), 1)
    assert (place.count, place.ms) == (3, 0.075)


def test_a_function_in_a_backward_pass_is_nearer_than_one_of_the_forward_pass() -> None:
    places, trace = finder(f"""
        main | 0 1000  | ProfilerStep#0
        main | 10 300  | /x/net.py(7): forward | cat=python
        main | 20 100  | Scan | seq=1
        main | 500 700 | {NODE} ScanBackward | seq=1 fwd=1
        main | 510 690 | ScanBackward | seq=1 fwd=1
        main | 520 680 | /x/net.py(19): backward | cat=python
        main | 530 600 | aten::cat
    """)
    rows = rows_of(trace, "aten::cat", "ScanBackward")
    assert [one.code for one in places.of(rows, 1)] == ["/x/net.py:7 in forward", "/x/net.py:19 in backward"]


def test_a_module_has_the_line_that_calls_it_or_its_own() -> None:
    text = repeated("main | 10 90 | stepscope.module: net\nmain | 20 80 | aten::mm")
    trace = annotate(drawn_trace(text))
    count = len(trace["modules"])

    def place(**columns: object) -> tuple[str, int | None, str]:
        texts = {name: Text.of([value] * count) for name, value in columns.items() if isinstance(value, str)}
        lines = {name: np.full(count, value) for name, value in columns.items() if isinstance(value, int)}
        changed = trace.with_table(trace["modules"].with_columns(**texts, **lines))
        module = int(changed.events["module"][rows_of(changed, "aten::mm")[0]])
        return PlaceFinder(changed)._of_module(module)

    library = "/lib/site-packages/torch/nn/linear.py"
    assert place(file="net.py", line=3) == ("net.py", 3, "")
    assert place(file="net.py", line=0) == ("net.py", 0, "")
    assert place(file="net.py", line=3, call_file="main.py", call_line=9) == ("main.py", 9, "")
    assert place(file="net.py", line=3, call_file="main.py", call_line=-1) == ("net.py", 3, "")
    assert place(file="net.py", line=3, call_file=library, call_line=9) == ("net.py", 3, "")
    assert place(file=library, line=3) == ("", None, "")
    assert place() == ("", None, "")


PYTORCH = "/lib/site-packages/torch/nn/modules"


@pytest.mark.parametrize(
    ("operator", "class_name", "file", "expected"),
    [
        ("mm", "MultiheadAttention", f"{PYTORCH}/activation.py", True),
        ("mm", "MultiheadAttention", "", True),
        ("mm", "MultiheadAttention", "/me/net.py", False),
        ("mm", "TransformerDecoderLayer", "", True),
        ("mm", "Transformer", "", True),
        ("mm", "TransformerOfMine", "", False),
        ("mm", "", f"{PYTORCH}/transformer.py", True),
        ("mm", "Linear", f"{PYTORCH}/linear.py", False),
        ("view", "Linear", f"{PYTORCH}/linear.py", True),
        ("reshape", "Linear", f"{PYTORCH}/linear.py", True),
        ("viewed", "Linear", f"{PYTORCH}/linear.py", False),
        ("view", "Linear", "/me/torch/nn/linear.py", False),
        ("view", "Linear", "", False),
    ],
)
def test_what_pytorch_chose(operator: str, class_name: str, file: str, expected: bool) -> None:
    text = "main | 0 9 | aten::{0}\nmain | 10 90 | stepscope.module: net\nmain | 20 80 | aten::{0}"
    trace = annotate(drawn_trace(repeated(text.format(operator))))
    modules = trace["modules"]
    columns = {"class": Text.of([class_name] * len(modules)), "file": Text.of([file] * len(modules))}
    rows = rows_of(trace, f"aten::{operator}")
    found = are_of_pytorch(trace.with_table(modules.with_columns(**columns)), rows)
    assert found.tolist() == [False, expected] * 2


# -- lines of compiled programs


def compiled(*operations: str, framework: str = "jax") -> CompiledSources:
    """A call of `step`, one of `other`, and operations of programs."""
    lines = ["main | 0 50 | PjitFunction(step) | cat=runtime", "main | 10 20 | aten::mm"]
    lines += [f"pool | {60 + 10 * n} {65 + 10 * n} | {one}" for n, one in enumerate(operations)]
    lines.append("main | 200 210 | PjitFunction(other) | cat=runtime")
    return CompiledSources(drawn_trace("\n".join(lines), framework=framework))


def test_a_program_has_the_first_of_its_lines_in_the_file_with_most() -> None:
    library = "/venv/lib/python3.11/site-packages/flax/linear.py"
    sources = compiled(
        "dot.1 | cat=cpu_op hlo__module=jit_step source=net.py:30",
        "dot.2 | cat=cpu_op hlo__module=jit_step source=net.py:12",
        "dot.3 | cat=kernel scope=jit(step)/mul source=train.py:3",
        f"dot.4 | cat=cpu_op hlo__module=jit_step source={library}:1",
        f"dot.5 | cat=cpu_op hlo__module=jit_step source={library}:2",
        f"dot.6 | cat=cpu_op hlo__module=jit_step source={library}:2",
        "dot.7 | cat=annotation hlo__module=jit_step source=net.py:1",
        "dot.8 | cat=cpu_op hlo__module=jit_step source=net.py",
    )
    names = sources._trace.events.text("name")
    line = {names[row]: sources.line(row) for row in range(len(names))}
    assert line["PjitFunction(step)"] == line["aten::mm"] == CompiledLine("net.py", 12)
    assert line["PjitFunction(other)"] == CompiledLine()
    assert line["dot.1"] == CompiledLine("net.py", 30)
    assert line["dot.4"] == CompiledLine(library, 1)
    assert line["dot.8"] == CompiledLine()
    programs = {names[row]: sources.program(row) for row in range(len(names))}
    assert programs["aten::mm"] == programs["PjitFunction(step)"] == "step"
    assert programs["dot.1"] == ""
    other = compiled("dot.1 | cat=cpu_op hlo__module=jit_step source=net.py:30", framework="pytorch")
    assert [other.line(row) for row in range(3)] == [CompiledLine()] * 3
    assert [other.program(row) for row in range(3)] == [""] * 3
    assert other.captured_at(np.array([0, 1])).tolist() == [-1, -1]


def test_a_program_of_a_library_has_its_most_frequent_file() -> None:
    sources = compiled(
        "dot.1 | cat=cpu_op hlo__module=jit_step source=/lib/site-packages/a.py:5",
        "dot.2 | cat=cpu_op hlo__module=jit_step source=/lib/site-packages/b.py:9",
        "dot.3 | cat=cpu_op hlo__module=jit_step source=/lib/site-packages/b.py:7",
    )
    assert sources.line(0) == CompiledLine("/lib/site-packages/b.py", 7)
