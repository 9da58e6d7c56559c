"""Which module each event belongs to, and what each module costs."""

from __future__ import annotations

from typing import Any

import numpy as np
from facts import module_of_events

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.modules.costs import module_costs
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MODULE_SHARES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

NET: dict[str, Any] = {
    "roots": [
        {
            "name": "net",
            "path": "",
            "class": "my.Net",
            "file": "net.py",
            "line": 3,
            "parameters": 30,
            "parameter_bytes": 120,
            "call_file": "train.py",
            "call_line": 40,
            "children": [
                {"name": "fc1", "path": "fc1", "class": "torch.nn.Linear", "parameters": 20},
                {"name": "fc2", "path": "fc2", "class": "torch.nn.Linear", "parameters": 10},
            ],
        }
    ]
}


def costs(trace: Trace, *columns: str) -> dict[Any, tuple[float, ...]]:
    """Path to times in microseconds."""
    return {row["path"]: tuple(row[column] / 1000 for column in columns) for row in trace["modules"].rows()}


CAPTURED = """
    main     |  0 100 | ProfilerStep#1
    main     | 10  40 | stepscope.module:
    main     | 11  20 | stepscope.module: fc1
    main     | 12  18 | aten::addmm                                     | seq=1
    main     | 13  14 | cudaLaunchKernel                                | corr=1
    main     | 20  22 | aten::relu                                      | seq=2
    main     | 25  35 | stepscope.module: fc2
    main     | 26  30 | aten::linear                                    | seq=3
    autograd | 50  60 | autograd::engine::evaluate_function: Fc2        | seq=3 fwd=1
    autograd | 52  58 | aten::mm
    autograd | 53  54 | cudaLaunchKernel                                | corr=2
    autograd | 60  63 | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    autograd | 63  65 | autograd::engine::evaluate_function: Relu       | seq=2 fwd=1
    autograd | 65  70 | autograd::engine::evaluate_function: Fc1        | seq=1 fwd=1
    stream 7 | 20  30 | sgemm                                           | corr=1
    stream 7 | 60  90 | sgemm_nt                                        | corr=2
"""


def test_a_captures_ranges_name_every_event() -> None:
    trace = annotate(drawn_trace(CAPTURED, model=NET))
    engine = "autograd::engine::evaluate_function: "
    assert module_of_events(trace) == {
        "ProfilerStep#1": None,
        "stepscope.module:": "",
        "stepscope.module: fc1": "fc1",
        "aten::addmm": "fc1",
        "cudaLaunchKernel": ["fc1", "fc2"],
        "aten::relu": "",
        "stepscope.module: fc2": "fc2",
        "aten::linear": "fc2",
        f"{engine}Fc2": "fc2",
        "aten::mm": "fc2",
        f"{engine}torch::autograd::AccumulateGrad": "fc2",
        f"{engine}Relu": "",
        f"{engine}Fc1": "fc1",
        "sgemm": "fc1",
        "sgemm_nt": "fc2",
    }


def test_a_parents_cost_includes_its_childrens() -> None:
    trace = annotate(drawn_trace(CAPTURED, model=NET))
    columns = ("forward_cpu_ns", "forward_device_ns", "backward_cpu_ns", "backward_device_ns")
    assert costs(trace, *columns) == {"": (30, 10, 20, 30), "fc1": (9, 10, 5, 0), "fc2": (10, 0, 13, 30)}


def test_the_table_says_what_the_model_tree_knows() -> None:
    rows = list(annotate(drawn_trace(CAPTURED, model=NET))["modules"].rows())
    assert [(row["path"], row["class"], row["parent"], row["calls"]) for row in rows] == [
        ("", "Net", None, 1),
        ("fc1", "Linear", 0, 1),
        ("fc2", "Linear", 0, 1),
    ]
    root = rows[0]
    assert (root["parameters"], root["parameter_bytes"]) == (30, 120)
    assert (root["file"], root["line"], root["call_line"]) == ("net.py", 3, 40)
    assert {row["evidence"] for row in rows} == {"ranges"}


def test_frames_of_nn_modules_number_instances_and_tell_their_place() -> None:
    trace = annotate(
        drawn_trace("""
            main | 0 100 | ProfilerStep#1
            main | 10 40 | nn.Module: Net_0
            main | 11 20 | nn.Module: Linear_0
            main | 12 18 | aten::addmm
            main | 25 35 | nn.Module: Linear_1
            main | 26 30 | aten::linear
            main | 50 60 | nn.Module: CrossEntropyLoss_0
            main | 51 55 | aten::nll_loss
        """)
    )
    found = module_of_events(trace)
    assert found["aten::addmm"] == "Net_0.Linear_0"
    assert found["aten::linear"] == "Net_0.Linear_1"
    assert found["aten::nll_loss"] == "CrossEntropyLoss_0"


def test_a_module_run_again_in_backward_is_the_same_module() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 100 | ProfilerStep#1
            main     | 10  40 | nn.Module: Net_0
            main     | 11  20 | nn.Module: Linear_0
            main     | 12  18 | aten::addmm                                   | seq=1
            autograd | 50  80 | autograd::engine::evaluate_function: Checkpoint | seq=1 fwd=1
            autograd | 55  65 | nn.Module: Linear_0
            autograd | 56  60 | aten::linear                                  | seq=9
        """)
    )
    assert module_of_events(trace)["aten::linear"] == "Net_0.Linear_0"
    assert [row["calls"] for row in trace["modules"].rows()] == [1, 1]
    assert costs(trace, "recompute_cpu_ns")["Net_0.Linear_0"] == (10,)


def test_modules_that_hold_each_other_do_not_form_a_ring() -> None:
    trace = annotate(
        drawn_trace("""
            main | 0 100 | ProfilerStep#1
            main | 10 40 | nn.Module: A_0
            main | 11 20 | nn.Module: B_0
            main | 50 80 | nn.Module: B_0
            main | 55 65 | nn.Module: A_0
        """)
    )
    assert sorted(row["path"] for row in trace["modules"].rows()) == ["A_0", "A_0.B_0"]


def test_overlapping_kernels_of_one_module_count_once() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 100 | ProfilerStep#1
            main     | 10  40 | nn.Module: Net_0
            main     | 11  20 | nn.Module: Linear_0
            main     | 12  13 | cudaLaunchKernel | corr=1
            main     | 14  15 | cudaLaunchKernel | corr=2
            main     | 30  31 | cudaLaunchKernel | corr=3
            stream 7 | 20  50 | a                | corr=1
            stream 8 | 30  60 | b                | corr=2
            stream 9 | 40  70 | c                | corr=3
        """)
    )
    assert costs(trace, "forward_device_ns") == {"Net_0": (50,), "Net_0.Linear_0": (40,)}


def test_a_collective_is_no_modules_cost() -> None:
    trace = annotate(
        drawn_trace("""
            main     |  0 100 | ProfilerStep#1
            main     | 10  40 | nn.Module: Net_0
            main     | 12  18 | aten::mm                                      | seq=1
            autograd | 50  60 | autograd::engine::evaluate_function: Mm       | seq=1 fwd=1
            autograd | 55  57 | cudaLaunchKernel                              | corr=1
            stream 9 | 60  90 | ncclDevKernel_AllReduce                       | corr=1
        """)
    )
    assert module_of_events(trace)["ncclDevKernel_AllReduce"] == "Net_0"
    assert costs(trace, "backward_device_ns") == {"Net_0": (0,)}


def test_a_trace_that_names_no_module_has_none() -> None:
    trace = annotate(drawn_trace("main | 0 10 | aten::mm"))
    assert len(trace["modules"]) == 0
    assert module_of_events(trace) == {"aten::mm": None}


def test_a_given_model_does_not_replace_the_one_that_the_file_has() -> None:
    """As when several files are opened with one --model."""
    other = {"name": "other", "class": "Other", "children": []}
    trace = annotate(drawn_trace(CAPTURED, model=NET), other)
    assert trace["modules"].text("call_file")[0] == "train.py"


def test_the_parts_of_divided_kernels_lie_one_after_the_other() -> None:
    """Busy time is a union over streams, so it matters where each part of a kernel lies."""
    trace = drawn_trace("""
        stream 7 |  0 10 | fused
        stream 8 |  4  8 | own
        stream 7 | 20 30 | fused
        stream 8 | 22 24 | own
    """)
    stage, module = Text.of(["forward"] * 4), np.array([0, 1, 0, 1], np.int32)
    trace = trace.with_events(step=np.zeros(4, np.int32), stage=stage, module=module)
    shares = {"event": [0, 0, 2, 2], "module": [1, 2, 1, 2], "share": [0.4, 0.6, 0.4, 0.6]}
    costs = module_costs(trace.with_table(Table(MODULE_SHARES, shares)), np.array([-1, 0, 0], np.int32))
    assert (costs["forward_device_ns"] / 1000).tolist() == [20, 12, 12]
