"""What is noted of graphs that torch.compile compiles, and that noting it changes nothing."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from stepscope.record.inductor_graphs import InductorGraphs
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry

CODE = """
import torch
triton_poi_fused_add_0 = async_compile.triton('triton_', '''
def call(self): pass
''', device_str='cuda')
class Runner:
    def call(self, args):
        # Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]
        triton_poi_fused_add_0.run(buf0)
        return (buf0, )
def benchmark_compiled_module():
    pass
"""


class Inductor:
    """Two modules of Inductor as far as they are watched, and Dynamo's number of a graph."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.compile_fx = SimpleNamespace(compile_fx=lambda graph, inputs: ("compiled", graph))

        class CompiledFxGraph:
            source_code, _fx_graph_cache_key = CODE, "key"

            def post_compile(self, inputs: Any, constants: Any, options: Any) -> str:
                return "done"

        self.output_code = SimpleNamespace(CompiledFxGraph=CompiledFxGraph)
        patch.setitem(sys.modules, "torch._inductor.compile_fx", self.compile_fx)
        patch.setitem(sys.modules, "torch._inductor.output_code", self.output_code)
        context = SimpleNamespace(current_compile_id=lambda: "0/0")
        patch.setitem(sys.modules, "torch._guards", SimpleNamespace(CompileContext=context))

    def compile(self, graph: Any) -> tuple[Any, Any]:
        program = self.output_code.CompiledFxGraph()
        compiled = self.compile_fx.compile_fx(graph, ())
        return compiled, program.post_compile((), None, {"is_backward": False})


@pytest.fixture
def inductor(monkeypatch: pytest.MonkeyPatch) -> Inductor:
    return Inductor(monkeypatch)


def noting(model: nn.Module | None = None) -> InductorGraphs:
    registry = ModuleRegistry()
    if model is not None:
        registry.add_root(model, "model")
    return InductorGraphs(registry, ModuleRanges(registry))


def traced(model: nn.Sequential) -> Any:
    """The graph of a layer, as Dynamo traces it."""
    graph = torch.fx.Graph()
    stack = {str(id(model)): ("L['fn']", nn.Sequential), f"{id(model[0])}@1": ("L['fn'].0", nn.Linear)}
    weight = graph.placeholder("L_fn_modules_0_parameters_weight_")
    inputs = graph.placeholder("L_args_0_")
    result = graph.call_function(nn.functional.linear, (inputs, weight))
    for node, value in ((weight, model[0].weight), (inputs, torch.ones(2, 3)), (result, torch.ones(2, 4))):
        node.meta |= {"example_value": value, "nn_module_stack": stack}
    return SimpleNamespace(graph=graph)


def test_nodes_have_the_paths_of_their_modules(inductor):
    model = nn.Sequential(nn.Linear(3, 4, bias=False))
    notes = noting(model)
    inductor.compile(traced(model))
    (graph,) = notes.describe()["graphs"]
    assert graph["inputs"] == ["0", None]
    assert graph["nodes"] == [
        {
            "name": "linear",
            "target": "linear",
            "path": "0",
            "elements": 8 + 6 + 12,
            "operations": 2 * 8 * 3,
            "reads": [1, 0],
        }
    ]
    notes.remove()


def test_programs_keep_their_calls_without_the_source_of_kernels(inductor):
    model = nn.Sequential(nn.Linear(3, 4, bias=False))
    notes = noting(model)
    inductor.compile(traced(model))
    (program,) = notes.describe()["graphs"][0]["programs"]
    assert (program["key"], program["backward"]) == ("key", False)
    lines = [line.strip() for line in program["code"].strip().splitlines()]
    assert lines == [
        "def call(self, args):",
        "# Topologically Sorted Source Nodes: [add], Original ATen: [aten.add]",
        "triton_poi_fused_add_0.run(buf0)",
        "return (buf0, )",
    ]
    notes.remove()


@pytest.mark.parametrize("graph", [None, object(), SimpleNamespace(graph=SimpleNamespace())])
def test_what_is_not_understood_is_compiled_as_ever(inductor, graph):
    notes = noting()
    assert inductor.compile(graph) == (("compiled", graph), "done")
    assert notes.describe() is None
    notes.remove()


def test_errors_of_the_compiler_reach_the_program(inductor):
    inductor.compile_fx.compile_fx = lambda *_: 1 / 0
    notes = noting()
    with pytest.raises(ZeroDivisionError):
        inductor.compile(None)
    notes.remove()


def test_nothing_is_left_in_torch(inductor):
    compile_fx = inductor.compile_fx.compile_fx
    post_compile = inductor.output_code.CompiledFxGraph.post_compile
    noting().remove()
    assert inductor.compile_fx.compile_fx is compile_fx
    assert inductor.output_code.CompiledFxGraph.post_compile is post_compile
