"""The modules in each graph that torch.compile compiles with Inductor, for compiled.json.

Two functions of Inductor are wrapped: one that every new graph of Dynamo goes through, whose nodes
know the modules that they were traced in, and one that every compiled program goes through, new or
from a cache, whose generated code names the nodes that each call was made from. Both are only
read: what is compiled and its keys in caches stay the same.

Source: torch/_inductor/compile_fx.py (`compile_fx`), output_code.py (`CompiledFxGraph`).
"""

import functools
import re
import sys
from collections.abc import Callable
from math import prod
from typing import Any

from stepscope.record.call_sites import is_module
from stepscope.record.module_ranges import ModuleRanges
from stepscope.record.module_registry import ModuleRegistry, unwrap
from stepscope.record.patch import AfterImport, Hooks, ignoring, replace

Json = dict[str, Any]
_MOST_GRAPHS = 2000  # kept in memory: a program may compile for ever
_LONGEST_CODE = 8 << 20  # characters; longer code is left out
_KERNELS = re.compile(r"'''.*?'''|\"\"\".*?\"\"\"", re.DOTALL)
_CALLS = re.compile(r"^\s*def (call|partition_\d+)\(", re.MULTILINE)
_END = re.compile(r"^(def (get_args|benchmark_compiled_module)\(|if __name__)", re.MULTILINE)
_SOURCE = re.compile(r"([LG])\['(\w+)'\]")
_PRODUCTS = re.compile(r"linear|conv|matmul|mm$|attention")
_PARTS = re.compile(r"\.(\w+)|\['([^']*)'\]|\[(\d+)\]")


class InductorGraphs(Hooks):
    """Notes what torch.compile compiles from now on."""

    def __init__(self, registry: ModuleRegistry, ranges: ModuleRanges) -> None:
        self._registry, self._ranges = registry, ranges
        self._graphs: dict[str, Json] = {}
        self._restore = []
        for module, cls, name, note in (
            ("torch._inductor.compile_fx", None, "compile_fx", self._note_graph),
            ("torch._inductor.output_code", "CompiledFxGraph", "post_compile", self._note_program),
        ):
            watch = AfterImport(module, functools.partial(self._wrap, module, cls, name, note))
            self._restore.append(watch.remove)
            watch.install()

    def clear(self) -> None:
        self._graphs.clear()

    def describe(self) -> Json | None:
        """The content of compiled.json, with paths of modules; None if nothing was compiled."""
        paths: dict[int, str] = {}
        for node in self._registry.nodes():
            paths.setdefault(id(node.module), node.path)
        graphs = [_described(graph, paths) for graph in self._graphs.values() if graph["programs"]]
        return {"version": 1, "graphs": graphs} if graphs else None

    def _wrap(self, module: str, cls: str | None, name: str, note: Callable[..., None]) -> None:
        """Call `note` with the arguments of a function before it; without the function nothing."""
        holder: Any = sys.modules[module]
        holder = getattr(holder, cls, None) if cls else holder
        original = getattr(holder, name, None)
        if original is None:
            return

        @functools.wraps(original)
        def noting(*args: Any, **kwargs: Any) -> Any:
            with ignoring(Exception):  # the compiler must continue whatever it has become
                note(*args, **kwargs)
            return original(*args, **kwargs)

        self._restore.append(replace(holder, name, noting))

    def _note_graph(self, graph: Any, *_: object, **__: object) -> None:
        """Dynamo's graph; `compile_fx` calls itself with the same graph."""
        region = _region()
        if region is None or region in self._graphs or len(self._graphs) >= _MOST_GRAPHS:
            return
        tracer = _tracer()
        own = self._own_module(tracer)
        nodes = list(graph.graph.nodes)
        if any(node.op == "call_module" for node in nodes):
            return  # an older Dynamo, whose nodes know no objects
        inputs = [node for node in nodes if node.op == "placeholder"]
        for outermost, source in _outermost(nodes).items():
            self._add_root(outermost, source, tracer)
        place = {node: number for number, node in enumerate(inputs)}
        self._graphs[region] = {
            "base": None if own is None else id(own),
            # The modules of parameters.
            "inputs": [_stack(node) if "_parameters_" in str(node.target) else None for node in inputs],
            "nodes": [_node(node, place) for node in nodes if node.op.startswith("call_")],
            "programs": [],
            "region": region,
        }

    def _note_program(self, program: Any, inputs: Any, constants: Any, options: Any, *_: object) -> None:
        graph = self._graphs.get(_region() or "")
        code = _calls_of(getattr(program, "source_code", None) or "")
        if graph is None or not code or len(graph["programs"]) > 9:
            return
        backward = bool(options.get("is_backward"))
        key = getattr(program, "_fx_graph_cache_key", None)
        graph["programs"].append({"key": key, "backward": backward, "code": code})

    def _own_module(self, tracer: Any) -> Any:
        """The module whose method is compiled: nodes without a stack belong to it."""
        running = self._ranges.running
        if running is not self._registry.top_level:
            return running.module
        names = tracer.f_code.co_varnames[:1] if tracer else ()
        own = unwrap(tracer.f_locals.get(names[0])) if names else None
        if not is_module(own):
            return None
        if not self._registry.has(own):
            self._registry.add_root(own, None)
        return own

    def _add_root(self, outermost: int, source: str, tracer: Any) -> None:
        """A model that only a compiled function calls is called by no Python of ours."""
        name, module = _first_module(source, tracer) if tracer else (None, None)
        model = unwrap(module)
        is_known = model is None or self._registry.has(model)
        if not is_known and id(model) != outermost:
            is_known = all(id(inner) != outermost for inner in model.modules())
        if not is_known:
            self._registry.add_root(module, name)


def _outermost(nodes: list[Any]) -> dict[int, str]:
    """The outermost modules that nodes were traced in, each with the expression for it."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in nodes]
    first = (next(iter(stack.items())) for stack in stacks if stack)
    numbered = ((_number(key), str(source)) for key, (source, *_) in first)
    return {number: source for number, source in numbered if number is not None}


def _region() -> str | None:
    """The number of what is compiled, as in the range `Torch-Compiled Region: 0/0`."""
    guards: Any = sys.modules["torch._guards"]
    number = guards.CompileContext.current_compile_id()
    return None if number is None else str(number)


def _tracer() -> Any:
    """Dynamo's view of the frame that is compiled, None where it is not known."""
    with ignoring(Exception):
        convert: Any = sys.modules["torch._dynamo.symbolic_convert"]
        tracer = convert.InstructionTranslator.current_tx()
        return getattr(tracer.output, "root_tx", None) or tracer
    return None


def _first_module(source: str, tracer: Any) -> tuple[str | None, Any]:
    """The first module on the way that an expression such as `L['self'].model` takes."""
    match = _SOURCE.match(source)
    if not match:
        return None, None
    scope = tracer.f_locals if match[1] == "L" else tracer.f_globals
    name, value = match[2], scope.get(match[2])
    for attribute, key, place in _PARTS.findall(source[match.end() :]):
        if is_module(value) or value is None:
            break
        if attribute:
            name, value = attribute, vars(value).get(attribute)
        else:
            value = value[key or int(place)]
    known_name = None if name in ("self", "fn") or name.startswith("_") else name
    return known_name, value if is_module(value) else None


def _stack(node: Any) -> list[int]:
    """The ids of the modules that a node was traced in, outermost first."""
    return [number for number in map(_number, node.meta.get("nn_module_stack") or ()) if number is not None]


def _number(key: object) -> int | None:
    """The id of a module; `…@1` is its second call."""
    number = str(key).partition("@")[0]
    return int(number) if number.isdigit() else None


def _node(node: Any, place: dict[Any, int]) -> Json:
    """A node of a graph; `stack` becomes the path of its module."""
    target = str(getattr(node.target, "__name__", node.target))
    values = [source.meta.get("example_value") for source in node.all_input_nodes]
    written = _elements(node.meta.get("example_value"))
    return {
        "name": node.name,
        "target": target,
        "stack": _stack(node),
        "elements": written + (written if "embedding" in target else sum(map(_elements, values))),
        "operations": 2 * written * _width(target, values),
        "reads": [place[source] for source in node.all_input_nodes if source in place],
    }


def _width(target: str, values: list[Any]) -> int:
    """How many products make an element of a result; 0 for what is no product."""
    wide = [value for value in values if len(getattr(value, "shape", ())) > 1]
    if len(wide) < 2 or not _PRODUCTS.search(target):
        return 0
    sizes = [_size(size) for size in wide[1].shape]
    return sizes[-2] if target.endswith("mm") or target == "matmul" else prod(sizes[1:])


def _elements(value: Any) -> int:
    if isinstance(value, (tuple, list)):
        return sum(map(_elements, value))
    return prod(map(_size, value.shape)) if hasattr(value, "shape") else 0


def _size(size: Any) -> int:
    """A size; for a symbol the one it was traced with, without asking it, which adds a guard."""
    if type(size) is int:
        return size
    hint = getattr(getattr(size, "node", None), "_hint", None)
    return hint if type(hint) is int else 1


def _calls_of(code: str) -> str:
    """The functions that call kernels and operators, without the source of the kernels."""
    begin = _CALLS.search(code := _KERNELS.sub("''", code))
    end = _END.search(code)
    calls = code[begin.start() : end.start() if end else None] if begin else ""
    return calls if len(calls) <= _LONGEST_CODE else ""


def _described(graph: Json, paths: dict[int, str]) -> Json:
    base = paths.get(graph["base"])

    def path_of(stack: list[int] | None) -> str | None:
        inside = [paths[number] for number in stack or () if number in paths]
        return inside[-1] if inside else None

    nodes = []
    for node in graph["nodes"]:
        path = path_of(node["stack"])
        rest = {key: value for key, value in node.items() if key != "stack"}
        nodes.append({**rest, "path": base if path is None else path})
    return {**graph, "base": base, "inputs": [path_of(stack) for stack in graph["inputs"]], "nodes": nodes}
