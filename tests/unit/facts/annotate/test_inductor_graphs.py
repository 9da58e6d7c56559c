"""Models of torch.compile have modules down to the leaves, with times that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.module_evidence import Evidence, Module
from stepscope.facts.annotate.modules import inductor_graphs
from stepscope.facts.annotate.modules.inductor_graphs import Call, calls_in, modules_of_calls
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

FORWARD = """
    def call(self, args):
        primals_1, primals_2, primals_3 = args
        buf0 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(primals_2, reinterpret_tensor(primals_1, (8, 8), (1, 8), 0), out=buf0)
        buf1 = buf0; del buf0  # reuse
        cpp_fused_add_relu_0(buf1, primals_2)
        buf2 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(buf1, reinterpret_tensor(primals_3, (8, 8), (1, 8), 0), out=buf2)
        return (buf2, buf1, primals_2, )
"""
BACKWARD = """
    def call(self, args):
        # Topologically Sorted Source Nodes: [permute_1, mm_2], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(reinterpret_tensor(tangents_1, (8, 4), (1, 8), 0), relu, out=buf0)
        buf1 = empty_strided_cpu((4, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [linear_1, mm_3], Original ATen: [aten.mm]
        extern_kernels.mm(tangents_1, primals_3, out=buf1)
        buf2 = buf1; del buf1  # reuse
        cpp_fused_add_threshold_backward_0(buf2, relu)
        buf3 = empty_strided_cpu((8, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [permute_2, mm_4], Original ATen: [aten.t, aten.mm]
        extern_kernels.mm(reinterpret_tensor(buf2, (8, 4), (1, 8), 0), primals_2, out=buf3)
        return (buf3, None, reinterpret_tensor(buf0, (8, 8), (8, 1), 0), )
"""
# What Dynamo traced: second(relu(first(x) + x)), in a model that adds.
NODES = [
    ("linear", "linear", "first", 96, 512, [0, 1]),
    ("add", "add", "", 300, 0, [1]),
    ("y", "relu", "act", 100, 0, []),
    ("linear_1", "linear", "second", 96, 512, [2]),
]


def graph(**changes: Any) -> dict[str, Any]:
    keys = "name", "target", "path", "elements", "operations", "reads"
    return {
        "region": "0/0",
        "base": "",
        "inputs": ["first", None, "second"],
        "nodes": [dict(zip(keys, node, strict=True)) for node in NODES],
        "programs": [
            {"key": "fw", "backward": False, "code": FORWARD},
            {"key": "bw", "backward": True, "code": BACKWARD},
        ],
        **changes,
    }


def tree(name: str = "model", path: str = "") -> dict[str, Any]:
    children = [
        {"name": part, "path": f"{path}.{part}".strip("."), "class": "Part", "children": []}
        for part in ("first", "act", "second")
    ]
    return {"name": name, "path": path, "class": "Net", "children": children}


def drawn(lines: str, *graphs: dict[str, Any], roots: list[dict[str, Any]] | None = None) -> Trace:
    model = {"roots": roots or [tree()]}
    properties = {"compiled": {"graphs": list(graphs)}} if graphs else {}
    return annotate(drawn_trace(lines, model=model, properties=properties))


STEP = """
    main |   0 500 | ProfilerStep#0
    main |  10 200 | stepscope.module:
    main |  20 190 | Torch-Compiled Region: 0/0
    main |  30 180 | CompiledFunction | seq=1 fwd=0
    main |  40 170 | ## Call CompiledFxGraph fw ##
    main |  50  80 | aten::mm
    main | 120 160 | aten::mm
    main | 300 450 | autograd::engine::evaluate_function: CompiledFunctionBackward | seq=1 fwd=1
    main | 310 440 | CompiledFunctionBackward | seq=1 fwd=1
    main | 320 430 | ## Call CompiledFxGraph bw ##
    main | 330 340 | aten::mm
    main | 345 355 | aten::mm
    main | 395 415 | aten::mm
"""


def times(trace: Trace, path: str) -> tuple[float, float]:
    """Forward and backward of a module, us."""
    row = list(trace["modules"].text("path")).index(path)
    modules = trace["modules"]
    return modules["forward_cpu_ns"][row] / 1000, modules["backward_cpu_ns"][row] / 1000


def us(expected: float) -> Any:
    """Equal but for the rounding to nanoseconds."""
    return pytest.approx(expected, abs=0.0021)


def test_operators_have_the_modules_that_the_code_names():
    trace = drawn(STEP, graph())
    names = [
        (trace.events.text("name")[row], trace["modules"].text("path")[int(module)])
        for row, module in enumerate(trace.events["module"].tolist())
        if trace.events.text("name")[row] == "aten::mm"
    ]
    assert [path for _, path in names] == ["first", "second", "second", "second", "first"]


def test_time_between_operators_divides_among_the_kernels_there():
    trace = drawn(STEP, graph())
    # forward: 10 us before the first product, 30 of it, 40 of the kernel (3 to 1), 40 and 10 after
    assert times(trace, "first")[0] == us(40)
    assert times(trace, "act")[0] == us(10)
    assert times(trace, "second")[0] == us(50)
    assert times(trace, "")[0] == us(190)
    # backward: 10, 10 and 5 and 10 of second; 40 of the kernel; 20 and 15 of first
    assert times(trace, "second")[1] == us(35)
    assert times(trace, "act")[1] == us(10)
    assert times(trace, "first")[1] == us(35)
    assert times(trace, "")[1] == us(150)


def test_shares_add_up_and_calls_are_counted():
    trace = drawn(STEP, graph())
    shares = trace["module_shares"]
    for event in set(shares["event"].tolist()):
        assert shares["share"][shares["event"] == event].sum() == pytest.approx(1)
    calls = dict(zip(trace["modules"].text("path"), trace["modules"]["calls"].tolist(), strict=True))
    assert calls == {"": 1, "first": 1, "act": 1, "second": 1}


def test_modules_of_one_class_share_a_graph():
    """It was compiled for the first block; the second has paths of its own."""
    blocks = [tree(name, name) for name in ("0", "1")]
    model = {"name": "model", "path": "", "class": "Stack", "children": blocks}
    of_first = [(*node[:2], f"0.{node[2]}".strip("."), *node[3:]) for node in NODES]
    keys = "name", "target", "path", "elements", "operations", "reads"
    shared = graph(base="0", nodes=[dict(zip(keys, node, strict=True)) for node in of_first])
    trace = drawn(STEP.replace("stepscope.module:", "stepscope.module: 1"), shared, roots=[model])
    assert times(trace, "1.second")[0] == us(50)
    assert times(trace, "1.second")[1] == us(35)
    assert times(trace, "0")[0] == 0


def test_functions_have_modules_without_any_range():
    lines = STEP.replace("stepscope.module:", "aten::op")
    trace = drawn(lines, graph(base=None))
    assert times(trace, "first")[0] == us(40)
    assert times(trace, "") == (us(130), us(110))


def test_what_a_function_does_outside_of_modules_belongs_to_none():
    nodes = [{**node, "path": node["path"] or None} for node in graph()["nodes"]]
    trace = drawn(STEP.replace("stepscope.module:", "aten::op"), graph(base=None, nodes=nodes))
    assert times(trace, "act")[0] == us(10)
    assert times(trace, "")[0] == us(100)  # 30 us of the kernel are the addition


def test_without_a_key_the_region_identifies_the_program():
    programs = [{**program, "key": None} for program in graph()["programs"]]
    lines = STEP.replace("Graph fw", "Graph None").replace("Graph bw", "Graph None")
    other = graph(region="1/0", nodes=[], programs=programs)
    trace = drawn(lines, other, graph(programs=programs))
    assert times(trace, "second") == (us(50), us(35))


def test_unknown_code_leaves_the_model_one_row_and_says_so():
    lines = STEP.replace("Graph fw", "Graph other").replace("Graph bw", "Graph another")
    trace = drawn(lines, graph())
    assert times(trace, "first") == (0, 0)
    assert times(trace, "")[0] == us(190)
    assert "compiled_modules" in list(trace["warnings"].text("code"))


def test_kernels_on_devices_divide_by_the_nodes_that_they_were_fused_from():
    code = """
    def call(self, args):
        # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.mm]
        extern_kernels.mm(primals_2, primals_1, out=buf0)
        # Topologically Sorted Source Nodes: [add, y], Original ATen: [aten.add, aten.relu]
        triton_poi_fused_add_relu_0.run(buf0, primals_2, 32, stream=stream0)
        return (buf0, )
    """
    trace = drawn(
        """
        main     |   0 500 | ProfilerStep#0
        main     |  10 200 | stepscope.module:
        main     |  20 190 | Torch-Compiled Region: 0/0
        main     |  40 170 | ## Call CompiledFxGraph fw ##
        main     |  50  80 | aten::mm
        main     |  60  70 | cudaLaunchKernel | corr=1
        main     | 100 120 | triton_poi_fused_add_relu_0
        main     | 105 115 | cuLaunchKernel | corr=2
        stream 7 | 100 180 | sgemm | corr=1
        stream 7 | 180 220 | triton_poi_fused_add_relu_0 | corr=2
        """,
        graph(programs=[{"key": "fw", "backward": False, "code": code}]),
    )
    modules = trace["modules"]
    device = dict(zip(modules.text("path"), modules["forward_device_ns"].tolist(), strict=True))
    assert device == {"": 120_000, "first": 80_000, "act": 10_000, "second": 0}
    # on the CPU a quarter of 20 us of its launch, of 20 before and of 50 after
    assert times(trace, "act")[0] == us(22.5)
    assert times(trace, "first")[0] == us(40)


@pytest.mark.parametrize(
    ("line", "name", "is_kernel"),
    [
        ("extern_kernels.addmm(a, b, c, alpha=1, beta=1, out=buf5)", "addmm", False),
        ("buf3 = extern_kernels.convolution(buf2, b, stride=(1, 1))", "convolution", False),
        (
            "buf1 = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default(a, b, c)",
            "_scaled_dot_product_flash_attention_for_cpu",
            False,
        ),
        ("buf1 = torch.ops.mkldnn._linear_pointwise.default(a, b, c)", "_linear_pointwise", False),
        ("triton_per_fused_add_2.run(buf5, 64, stream=stream0)", "triton_per_fused_add_2", True),
        ("cpp_fused_add_4(buf24, primals_3)", "cpp_fused_add_4", True),
    ],
)
def test_calls_of_generated_code(line, name, is_kernel):
    (call,) = calls_in(f"# Unsorted Source Nodes: [x, y], Original ATen: []\n    {line}")
    assert (call.name, call.is_kernel, call.nodes) == (name, is_kernel, ("x", "y"))


def test_gradients_are_found_through_what_buffers_become():
    calls = calls_in(
        """
        buf0 = torch.ops.aten.convolution_backward.default(tangents_1, primals_1)
        buf1 = buf0[1]
        buf2 = empty_strided_cpu((8, ), (1, ), torch.float32)
        cpp_fused_sum_0(tangents_1, buf2)
        return (buf1, reinterpret_tensor(buf2, (8, ), (1, ), 0), None, )
        """,
        parameters=[True, True, False],
    )
    assert [call.gradients for call in calls] == [(0,), (1,)]


def test_gradients_with_symbolic_shapes():
    """The program lacks inputs of the graph, here the one between the parameters."""
    code = """
        extern_kernels.mm(tangents_1, a, out=buf0)
        extern_kernels.mm(tangents_1, b, out=buf1)
        return (buf0, None, buf1, )
        """
    calls = calls_in(code, parameters=[True, False, False, True])
    assert [call.gradients for call in calls] == [(0,), (3,)]


def test_a_product_without_a_name_is_one_of_those_between_its_neighbors():
    nodes = graph()["nodes"]
    nodes[1] = {**nodes[1], "target": "scaled_dot_product_attention", "operations": 9}
    calls = calls_in(
        """
        # Source Nodes: [linear_1], Original ATen: []
        extern_kernels.mm(a, b, out=buf0)
        # Source Nodes: [permute_9, bmm_3], Original ATen: []
        extern_kernels.bmm(buf0, c, out=buf1)
        # Source Nodes: [linear], Original ATen: []
        extern_kernels.mm(buf1, b, out=buf2)
        """
    )
    found = modules_of_calls(calls, graph(nodes=nodes), backward=True)
    assert [list(parts) for parts in found] == [["second"], [""], ["first"]]


# -- part by part


def test_each_call_has_the_work_of_its_nodes():
    """Elements, and of products their operations too."""
    forward = modules_of_calls(calls_in(FORWARD), graph(), backward=False)
    assert forward == [{"first": 608.0}, {"": 300.0, "act": 100.0}, {"second": 608.0}]
    parameters = [True, False, True]
    backward = modules_of_calls(calls_in(BACKWARD, parameters), graph(), backward=True)
    assert backward == [{"second": 608.0}, {"second": 608.0}, {"": 300.0, "act": 100.0}, {"first": 608.0}]


def test_a_node_without_elements_counts_as_one():
    nodes = [{**node, "elements": 0, "operations": 0} for node in graph()["nodes"]]
    assert modules_of_calls([Call("mm", False, ("linear",))], graph(nodes=nodes), backward=False) == [
        {"first": 1.0}
    ]


@pytest.mark.parametrize(
    ("text", "elements"),
    [
        ("a, b, )", ["a", "b"]),
        ("f(a, b), [c, d], )", ["f(a, b)", "[c, d]"]),
        ("a)", ["a"]),
        (")", []),
        ("f(g(a)), b) ignored, c", ["f(g(a))", "b"]),
    ],
)
def test_the_elements_of_a_tuple(text, elements):
    assert list(inductor_graphs._elements(text)) == elements


@pytest.mark.parametrize(
    ("returned", "parameters", "found"),
    [
        (["a", "None"], [True, False], [(0, "a"), (1, "None")]),
        (["a", "None", "b"], [True, False, False, True], [(0, "a"), (3, "b")]),
        (["a", "b"], [True, False, False], []),
        ([], [], []),
    ],
)
def test_what_a_backward_program_returns_is_of_its_inputs(returned, parameters, found):
    assert inductor_graphs._gradients(returned, parameters) == found


@pytest.mark.parametrize(
    ("line", "name", "is_kernel"),
    [
        ("aten.mm.default(a, b)", "mm", False),
        ("buf1 = ops.aten.sum.dim(a)", "sum", False),
        ("buf1 = torch.ops.mylib.f(a)", "f", False),
        ("pallas_fused_0(a)", "pallas_fused_0", True),
        ("buf3 = halide_fused_1.run(a)", "halide_fused_1", True),
    ],
)
def test_more_calls_of_generated_code(line, name, is_kernel):
    (call,) = calls_in(line)
    assert (call.name, call.is_kernel, call.nodes, call.gradients) == (name, is_kernel, (), ())
    assert calls_in("x = other(a)") == calls_in("del buf0") == []


def test_nodes_are_of_the_next_call_alone():
    calls = calls_in(
        "# Source Nodes: [x,  y, ]\nextern_kernels.mm(a, out=buf0)\nextern_kernels.mm(b, out=buf1)"
    )
    assert [call.nodes for call in calls] == [("x", "y"), ()]


def test_operators_are_calls_of_their_names():
    kernel, product = Call("triton_x", True), Call("bias_addmm", False)
    assert inductor_graphs._is_named(kernel, "triton_x")
    assert not inductor_graphs._is_named(Call("bias_addmm", True), "addmm")
    assert inductor_graphs._is_named(product, "addmm")
    assert not inductor_graphs._is_named(product, "mm")


@pytest.mark.parametrize(
    ("target", "kernel", "is_in"),
    [
        ("relu", "cpp_fused_add_relu_0", True),
        ("relu_", "cpp_fused_threshold_backward_0", True),
        ("cross_entropy", "triton_nll_loss", True),
        ("leaky_relu", "triton_where", True),
        ("__Add__", "triton_add", True),
        ("gelu", "triton_add", False),
    ],
)
def test_kernels_are_named_after_operators_or_their_gradients(target, kernel, is_in):
    assert inductor_graphs._is_in(target, kernel) is is_in


PATHS = ("", "0", "0.first", "1", "1.first", "first")


def attribution():
    modules = [Module(path, parent=PATHS.index(path.rpartition(".")[0]) if path else -1) for path in PATHS]
    trace = drawn_trace("main | 0 9 | a\nmain | 1 2 | b\nmain | 3 4 | c")
    evidence = Evidence("ranges", modules, np.full(3, -1, np.int32))
    return inductor_graphs._Attribution(trace, evidence)


def run(base, around, parts=()):
    program = inductor_graphs._InductorProgram(
        "k", {"base": base, "nodes": []}, False, [Call("x", True)] * len(parts), list(parts)
    )
    return inductor_graphs._ProgramRun(0, [], program, around)


@pytest.mark.parametrize(
    ("base", "around", "path", "found"),
    [
        ("0", "1", "0.first", "1.first"),
        ("0", "1", "0", "1"),
        ("0", "0", "0.first", "0.first"),
        ("0", "1", "other", ""),
        ("", "1", "first", "1.first"),
        ("0", "", "0.first", "first"),
        (None, "1", "0.first", "0.first"),
        ("0", None, "0.first", "0.first"),
        ("", "", "0.first.x.y", "0.first"),
        ("0", "1", "01.first", ""),
    ],
)
def test_a_module_is_located_below_the_one_that_was_called(base, around, path, found):
    number = -1 if around is None else PATHS.index(around)
    assert PATHS[attribution()._locate(path, run(base, number))] == found


def test_parts_without_a_module_are_of_the_one_around():
    found = attribution()._numbered({None: 2.0, "first": 3.0, "first.x": 1.0}, run("", 0))
    assert found == {0: 2.0, PATHS.index("first"): 4.0}


def test_the_kernels_between_two_calls_share_the_time_between_them():
    program = run("", 0, [{"a": 1.0}, {"a": 2.0, "b": 1.0}, {}, {"c": 5.0}]).program
    assert inductor_graphs._between(program, -1, 2) == {"a": 3.0, "b": 1.0}
    assert inductor_graphs._between(program, 2, 3) == {"c": 5.0}  # of the next call
    assert inductor_graphs._between(program, 1, 2) == {"a": 2.0, "b": 1.0}  # of the last one
    assert inductor_graphs._between(program, 3, 4) == {"c": 5.0}
    assert inductor_graphs._between(run("", 0, [{}]).program, -1, 0) == {}


def test_several_modules_are_one_event_of_what_is_around_them():
    found = attribution()
    found._put(0, {1: 1.0, 2: 3.0})
    found._put(1, {4: 1.0})
    found._put(2, {-1: 1.0})
    assert found.module.tolist() == [1, 4, -1]
    assert found.divided == {0: {1: 1.0, 2: 3.0}}
    found._put(2, {0: 1.0})
    assert found.module.tolist() == [1, 4, 0]
    shares = found._shares()
    assert list(zip(*(shares[name].tolist() for name in ("event", "module", "share")), strict=True)) == [
        *((0, 1, 0.25), (0, 2, 0.75))
    ]


def test_gaps_of_an_event_are_what_its_children_leave():
    trace = drawn_trace("""
        main | 0 100 | ## Call CompiledFxGraph fw ##
        main | 0  10 | a
        main | 20 30 | b
        main | 30 40 | c
    """)
    found = inductor_graphs._Attribution(trace, Evidence("ranges", [], np.full(4, -1, np.int32)))
    assert [(begin // 1000, end // 1000) for begin, end in found._gaps(0)] == [(10, 20), (40, 100)]


def test_time_of_which_nothing_is_known_is_of_the_module_around():
    trace = drawn_trace("main | 0 100 | ## Call CompiledFxGraph fw ##")
    modules = [Module(""), Module("a", parent=0)]
    found = inductor_graphs._Attribution(trace, Evidence("ranges", modules, np.array([0], np.int32)))
    found._divide_rest(run("", 0, [{}]), [])
    assert found.module.tolist() == [0]
    unknown = inductor_graphs._Attribution(trace, Evidence("ranges", modules, np.array([-1], np.int32)))
    unknown._divide_rest(run("", -1, [{}]), [])
    assert unknown.module.tolist() == [-1]
    both = inductor_graphs._Attribution(trace, Evidence("ranges", modules, np.array([0], np.int32)))
    both._divide_rest(run("", 0, [{"": 1.0, "a": 3.0}]), [])
    assert both.divided == {0: {0: 25_000.0, 1: 75_000.0}}


def test_what_a_divided_call_launches_divides_alike():
    trace = link_launches(
        drawn_trace(
            "main | 0 9 | cudaLaunchKernel | corr=1\nmain | 20 29 | aten::x\nstream 7 | 10 19 | k | corr=1"
        )
    )
    modules = [Module(""), Module("a", parent=0)]
    found = inductor_graphs._Attribution(trace, Evidence("ranges", modules, np.full(3, -1, np.int32)))
    found.divided = {0: {0: 1.0, 1: 1.0}}
    found._follow_launches()
    assert set(found.divided) == {0, 1}
    assert trace.events.text("name")[1] == "k"
