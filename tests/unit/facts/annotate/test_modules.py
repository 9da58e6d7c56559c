"""Which module each event belongs to, and what each module costs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from facts import module_of_events

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.launches import launching_operator
from stepscope.facts.annotate.module_evidence import (
    Evidence,
    Module,
    chain_of,
    enclosing,
    innermost_around,
    tree_modules,
)
from stepscope.facts.annotate.modules import costs as of_costs
from stepscope.facts.annotate.modules import modules as of_modules
from stepscope.facts.annotate.modules.costs import module_costs, module_table, numbered_blocks, subtree_totals
from stepscope.testing import drawn_trace
from stepscope.trace.schema import MODULE_SHARES, MODULES
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


def test_work_that_another_process_launches_has_the_module_of_the_operator() -> None:
    """On Ascend CANN launches; arrows of its own and of PyTorch's lead to the work."""
    trace = annotate(
        drawn_trace("""
            python   |  0 100 | ProfilerStep#1
            python   |  8  60 | nn.Module: Net_0
            python   | 10  30 | nn.Module: Linear_0
            python   | 12  20 | aten::linear
            python   | 40  50 | aten::softmax
            CANN     | 22  24 | Node@launch | cat=other
            CANN     | 52  54 | AscendCL@aclrtLaunch | cat=other
            stream 3 | 30  50 | MatMulV2
            stream 3 | 66  78 | SoftmaxV2
            HostToDevice | arrow | Node@launch > MatMulV2
            HostToDevice | arrow | AscendCL@aclrtLaunch > SoftmaxV2
            async_npu    | arrow | aten::linear > MatMulV2
            async_npu    | arrow | aten::softmax > SoftmaxV2
        """)
    )
    found = module_of_events(trace)
    assert (found["MatMulV2"], found["SoftmaxV2"]) == ("Net_0.Linear_0", "Net_0")
    operators = launching_operator(trace)[trace.events.text("name").mask("MatMulV2", "SoftmaxV2")]
    assert [trace.events.text("name")[int(row)] for row in operators] == ["aten::linear", "aten::softmax"]


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


def test_the_parts_of_divided_operators_add_up() -> None:
    """Of modules 0 and 1; what is of none does not count."""
    trace = drawn_trace("main | 0 10 | fused\nmain | 10 14 | own")
    trace = trace.with_events(step=[0, 0], stage=Text.of(["forward"] * 2), module=[0, 1], self_ns=[100, 40])
    shares = {"event": [0, 0, 0], "module": [0, 1, -1], "share": [0.25, 0.25, 0.5]}
    costs = module_costs(trace.with_table(Table(MODULE_SHARES, shares)), np.array([-1, 0], np.int32))
    assert costs["forward_cpu_ns"].tolist() == [90, 65]


# -- trees of modules

TREE = {
    "name": "net",
    "class": "Net",
    "children": [
        {"name": "layers", "class": "ModuleList", "children": [{"name": "0", "class": "Block", "size": 3}]},
        {"name": "head", "path": "elsewhere.head"},
        {"class": "Unnamed"},
    ],
}


def test_a_tree_is_listed_parents_first_with_paths() -> None:
    rows = [(module.path, module.name, module.kind, module.parent) for module in tree_modules(TREE)]
    assert rows == [
        ("", "net", "Net", -1),
        ("layers", "layers", "ModuleList", 0),
        ("layers.0", "0", "Block", 1),
        ("elsewhere.head", "head", "", 0),
        ("", "", "Unnamed", 0),
    ]
    assert tree_modules(TREE)[2].facts["size"] == 3
    assert [module.path for module in tree_modules({"roots": [{"path": "a"}, {"path": "b"}]})] == ["a", "b"]
    assert tree_modules({}) == []


@pytest.mark.parametrize(
    ("some", "around"),
    [([], -1), ([2], 2), ([2, 2], 2), ([2, 3], 1), ([2, 1], 1), ([2, 4], 0), ([2, 5], -1), ([-1, 2], -1)],
)
def test_the_innermost_module_around_some(some: list[int], around: int) -> None:
    modules = [Module(str(number), parent=parent) for number, parent in enumerate([-1, 0, 1, 1, 0, -1])]
    assert innermost_around(modules, some) == around
    assert enclosing(modules, 3) == [0, 1, 3]
    assert chain_of(-1, [0].__getitem__) == []


def test_copies_of_a_block_have_one_number() -> None:
    """Blocks have children, and are named by a number, or by their class and one."""
    names = [
        *(("net", "Net", -1, 99), ("h", "List", 0, 99)),
        *(("0", "Block", 1, 9), ("fc", "Linear", 2, 4), ("act", "ReLU", 2, 0)),
        *(("1", "Block", 1, 9), ("fc", "Linear", 5, 4), ("act", "ReLU", 5, 0)),
        *(("2", "Block", 1, 9), ("act", "ReLU", 8, 0), ("fc", "Linear", 8, 4)),  # in another order
        *(("Block_3", "Block", 1, 9), ("fc", "Linear", 11, 4), ("act", "ReLU", 11, 0)),
        *(("4", "Block", 1, 8), ("fc", "Linear", 14, 3), ("act", "ReLU", 14, 0)),  # of another size
        *(("5", "Linear", 1, 4), ("Other_6", "Block", 1, 9), ("fc", "Linear", 18, 4)),
    ]
    name, kind, parent, parameters = zip(*names, strict=True)
    columns = {"name": name, "class": kind, "parent": parent, "parameters": parameters}
    found = numbered_blocks(Table(MODULES, columns)).tolist()
    assert found[2] == found[5] == found[11] >= 0
    assert len({found[2], found[8], found[14]}) == 3
    assert [number for number, code in enumerate(found) if code >= 0] == [2, 5, 8, 11, 14]
    assert numbered_blocks(Table(MODULES, {})).tolist() == []


def test_totals_of_a_tree_are_those_of_all_below() -> None:
    parent = np.array([-1, 0, 1, 1, 0, -1], np.int32)
    assert subtree_totals(np.array([1, 2, 4, 8, 16, 32]), parent).tolist() == [31, 14, 4, 8, 16, 32]
    rows = subtree_totals(np.array([[1, 0], [2, 1], [4, 0], [8, 0], [16, 0], [32, 5]]), parent)
    assert rows.tolist() == [[31, 1], [14, 1], [4, 0], [8, 0], [16, 0], [32, 5]]
    group, event = of_costs._with_ancestors(np.array([2, 4], np.int32), parent)
    assert sorted(zip(group.tolist(), event.tolist(), strict=True)) == [
        (0, 0),
        (0, 1),
        (1, 0),
        (2, 0),
        (4, 1),
    ]


def test_each_phase_counts_its_own_events() -> None:
    """Of module 1 in module 0: forward, backward, repeated, evaluated, and what does not count."""
    stages = ["forward", "loss", "backward", "backward", "evaluation", "optimizer", "forward", "forward"]
    lines = [f"main | {2**n} {2 ** (n + 1)} | e{n}" for n in range(len(stages))]
    lines += [f"stream 7 | {1000 + 2**n} {1000 + 2 ** (n + 1)} | k{n}" for n in range(len(stages))]
    lines += ["stream 9 | 2000 2999 | ncclDevKernel | cat=communication"]
    trace = drawn_trace("\n".join(lines)).with_events(
        stage=Text.of([*stages, *stages, "forward"]),
        recompute=[*([0, 0, 0, 1, 0, 0, 0, 0] * 2), 0],
        module=[*([1, 1, 1, 1, 1, 1, 1, -1] * 2), 1],
        step=[*([0, 0, 0, 0, 0, 0, -1, 0] * 2), 0],
    )
    found = module_costs(trace, np.array([-1, 0], np.int32))
    for side in ("cpu", "device"):
        times = {name: found[f"{name}_{side}_ns"] for name in ("forward", "backward", "recompute", "outside")}
        assert {name: (time / 1000).tolist() for name, time in times.items()} == {
            **{"forward": [3, 3], "backward": [4, 4], "recompute": [8, 8], "outside": [16, 16]}
        }
    chosen = np.arange(len(trace.events)) == 1
    assert module_costs(trace, np.array([-1, 0], np.int32), chosen)["forward_cpu_ns"].tolist() == [2000, 2000]


def test_the_table_has_facts_of_the_tree_where_they_are_numbers_and_texts() -> None:
    facts = {
        "parameters": 3,
        "parameter_bytes": -1,
        "line": "7",
        "call_line": 9,
        "file": None,
        "call_file": "a",
    }
    modules = [Module("", "net", "my.models.Net"), Module("fc", "fc", "Linear", 0, facts)]
    trace = drawn_trace("main | 0 9 | a\nmain | 1 2 | b\nmain | 3 4 | c\nmain | 5 6 | d", ranks=(3,))
    trace = trace.with_events(recompute=[0, 0, 1, 0], stage=Text.of([None, None, None, "evaluation"]))
    call_of = np.array([0, 1, 1, 1], np.int32)
    rows = list(module_table(trace, Evidence("ranges", modules, call_of)).rows())
    names = ("path", "name", "class", "parent", "rank", "evidence", "calls")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("", "net", "Net", None, 3, "ranges", 1),
        ("fc", "fc", "Linear", 0, 3, "ranges", 1),
    ]
    names = ("parameters", "parameter_bytes", "line", "call_line", "file", "call_file")
    assert tuple(rows[1][name] for name in names) == (3, None, None, 9, "", "a")
    counted = module_table(trace, Evidence("scopes", modules, call_of, np.array([5, 6])))
    assert counted["calls"].tolist() == [5, 6]


@pytest.mark.parametrize(
    ("calls", "paths"),
    [
        (
            {("A_0", ""): 2, ("B_0", "A_0"): 2, ("B_0", ""): 9},
            ["A_0", "A_0.B_0"],
        ),  # an instance around counts
        ({("A_0", ""): 1, ("B_0", "A_0"): 1, ("B_0", "C_0"): 2, ("C_0", ""): 1}, ["A_0", "C_0.B_0", "C_0"]),
        ({("A_0", "B_0"): 1, ("B_0", "A_0"): 2, ("A_0", ""): 1}, ["A_0", "A_0.B_0"]),
        (
            {("A_0", "B_0"): 3, ("B_0", "C_0"): 2, ("C_0", "A_0"): 1, ("C_0", ""): 1},
            ["C_0.B_0.A_0", "C_0.B_0", "C_0"],
        ),
        ({("Net", ""): 1}, ["Net"]),
    ],
)
def test_instances_are_in_those_that_enclose_most_of_their_calls(
    calls: dict[tuple[str, str], int], paths: list[str]
) -> None:
    names = sorted({inner for inner, _ in calls})
    code = {name: number for number, name in enumerate(names)} | {"": -1}
    pairs = of_modules.Counter({(code[a], code[b]): count for (a, b), count in calls.items()})
    found, number = of_modules._tree_of_instances([f"nn.Module: {name}" for name in names], pairs)
    assert [found[number[code[name]]].path for name in names if code[name] in number] == paths
    assert all(module.parent < place for place, module in enumerate(found))
    assert {module.kind for module in found} <= {"A", "B", "C", "Net"}


def test_very_deep_instances_stay_at_one_level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_modules, "_DEEPEST", 2)
    pairs = of_modules.Counter({(0, -1): 1, (1, 0): 1, (2, 1): 1, (3, 2): 1})
    found, _ = of_modules._tree_of_instances([f"nn.Module: L_{number}" for number in range(4)], pairs)
    assert [module.path for module in found] == ["L_0", "L_0.L_1", "L_0.L_2", "L_0.L_3"]
    assert [module.parent for module in found] == [-1, 0, 0, 0]


def test_autograds_nodes_without_a_module_take_that_of_the_node_before() -> None:
    """On their thread and in their step; a node whose operator is in no module is in none either."""
    trace = annotate(
        drawn_trace(
            """
        main     |   0 100 | ProfilerStep#1
        main     |   2  20 | stepscope.module: a
        main     |   3   9 | aten::mm | seq=1
        main     |  22  28 | aten::relu | seq=2
        autograd |  30  35 | autograd::engine::evaluate_function: Before
        autograd |  40  45 | autograd::engine::evaluate_function: Mm | seq=1 fwd=1
        autograd |  46  48 | autograd::engine::evaluate_function: Accumulate
        autograd |  50  55 | autograd::engine::evaluate_function: Relu | seq=2 fwd=1
        autograd |  56  58 | autograd::engine::evaluate_function: After
        other    |  60  65 | autograd::engine::evaluate_function: Elsewhere
        main     | 100 200 | ProfilerStep#2
        autograd | 110 120 | autograd::engine::evaluate_function: Next
        """,
            model={"name": "", "class": "Net", "children": [{"name": "a", "class": "Linear"}]},
        )
    )
    found = {name.rpartition(": ")[2]: path for name, path in module_of_events(trace).items()}
    assert [found[name] for name in ("Mm", "Accumulate")] == ["a", "a"]
    assert [found[name] for name in ("Before", "Relu", "After", "Elsewhere", "Next")] == [None] * 5
