"""Modules inside of models that torch.compile compiled, from what a capture knows of their graphs.

Each call of a compiled program is a range, and what runs in it are the calls of its generated code,
in order. Operators, and kernels on a device, are events of their own. Kernels in C++ are not: they
are the time of the range between two operators. An event that was made from several modules belongs
to the innermost module around all of them; its time divides by their work (`module_shares`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids, Ids32, Mask, Rows
from stepscope.facts.annotate.links.launches import at_launch, on_host
from stepscope.facts.annotate.module_evidence import Evidence, enclosing, innermost_around
from stepscope.trace.nesting import inherit, innermost, is_inside
from stepscope.trace.row_order import rows_by_key
from stepscope.trace.schema import MODULE_SHARES
from stepscope.trace.sets import mask_of
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace, WarningRow

_PROGRAM = re.compile(r"^## Call CompiledFxGraph (\w+) ##$")
_REGION = "Torch-Compiled Region: "
_BACKWARD = "CompiledFunctionBackward"
_KERNEL_NUMBER = re.compile(r"^graph_\d+_")


class CompiledOperators(NamedTuple):
    """What compiled programs add to the modules of events."""

    module: Ids32  # of each event that a program's code identifies, -1 elsewhere, shape (events,)
    calls: Ids  # of each module inside of programs, shape (modules,)
    shares: Table  # the table `module_shares`
    unknown: int  # how many calls of programs have no modules

    def warnings(self) -> list[WarningRow]:
        """What the user should know."""
        if not self.unknown:
            return []
        message = (
            "calls of code that torch.compile made have no modules inside: it was compiled before "
            "recording began, or Inductor wrote it in a way that is not read"
        )
        return [("compiled_modules", message, self.unknown)]


class _InductorProgram(NamedTuple):
    key: str | None
    graph: Mapping[str, Any]
    backward: bool
    calls: list[Call]
    parts: list[Parts]


class _ProgramRun(NamedTuple):
    """A call of a program: its event, the operators in it, and the module that was called."""

    event: int
    operators: list[int]
    program: _InductorProgram
    around: int


def compiled_operators(trace: Trace, evidence: Evidence) -> CompiledOperators | None:
    """The modules of what runs in compiled programs; None where nothing was compiled or noted."""
    if not (trace.metadata.capture or trace.metadata.properties.get("compiled")):
        return None
    attribution = _Attribution(trace, evidence)
    return attribution.result() if attribution.is_program.any() else None


class _Attribution:
    def __init__(self, trace: Trace, evidence: Evidence) -> None:
        self.trace, self.events, self.evidence = trace, trace.events, evidence
        self.number = {module.path: place for place, module in enumerate(evidence.modules)}
        self.module = np.full(len(trace.events), -1, np.int32)
        self.calls = np.zeros(len(evidence.modules), np.int64)
        self.divided: dict[int, dict[int, float]] = {}

    def result(self) -> CompiledOperators:
        rows = np.flatnonzero(self.is_program)
        runs = [run for row in rows.tolist() if (run := self._run(row))]
        for run in runs:
            self._attribute(run)
        self._follow_launches()
        return CompiledOperators(self.module, self.calls, self._shares(), len(rows) - len(runs))

    @cached_property
    def is_program(self) -> Mask:
        return self._names.where(lambda name: bool(_PROGRAM.match(name)))

    @cached_property
    def _programs(self) -> list[_InductorProgram]:
        compiled = self.trace.metadata.properties.get("compiled") or {}
        return [
            _program(graph, program) for graph in compiled.get("graphs", ()) for program in graph["programs"]
        ]

    @cached_property
    def _names(self) -> Text:
        return self.events.text("name")

    @cached_property
    def _forward(self) -> Ids:
        """The forward event of what is around each event in backward, -1 in forward."""
        return inherit(self.events["parent"], self.events["forward_event"]).astype(np.int64)

    @cached_property
    def _region(self) -> Ids32:
        return innermost(self.events["parent"], self._names.where(lambda name: name.startswith(_REGION)))

    @cached_property
    def _in_backward(self) -> Mask:
        return is_inside(self.events["parent"], self._names.where(lambda name: name.startswith(_BACKWARD)))

    @cached_property
    def _around(self) -> Ids32:
        return inherit(self.events["parent"], self.evidence.call_of)

    @cached_property
    def _inside(self) -> dict[int, Rows]:
        """The outermost operators in each program, in order."""
        events, count = self.events, len(self.events)
        operator = events.text("category").mask("cpu_op", "communication") & on_host(self.trace)
        rows = np.arange(count)
        mark = np.where(self.is_program, rows, np.where(operator, count + rows, -1))
        within = np.append(inherit(events["parent"], mark.astype(np.int32)), -1)[events["parent"]]
        return rows_by_key(within, np.flatnonzero(operator & (within >= 0) & (within < count)))

    def _run(self, row: int) -> _ProgramRun | None:
        backward = bool(self._in_backward[row])
        forward = int(self._forward[row]) if backward else row
        region = self._names[int(self._region[forward])] if self._region[forward] >= 0 else None
        program = self._find(row, region, backward)
        if program is None:
            return None
        operators = self._inside[row].tolist() if row in self._inside else []
        return _ProgramRun(row, operators, program, int(self._around[forward]))

    def _find(self, row: int, region: str | None, backward: bool) -> _InductorProgram | None:
        """The program with the key that the range has, in the region that it is in."""
        key = _PROGRAM.match(self._names[row] or "")
        fitting = [
            program
            for program in self._programs
            if program.backward == backward and program.key in (None, key and key[1])
        ]
        inside = [program for program in fitting if region == _REGION + program.graph["region"]]
        return next((program for program in (inside or fitting) if inside or program.key), None)

    def _attribute(self, run: _ProgramRun) -> None:
        matched = self._match(run)
        for row, call in matched:
            self._put(row, self._numbered(run.program.parts[call], run))
        self._divide_rest(run, matched)
        if not run.program.backward:
            self._count(run)

    def _match(self, run: _ProgramRun) -> list[tuple[int, int]]:
        """Pairs of an operator and the call that it is, in order."""
        pairs, begin, calls = [], 0, run.program.calls
        for row in run.operators:
            name = _KERNEL_NUMBER.sub("", (self._names[row] or "").rpartition("::")[2])
            names = (at for at in range(begin, len(calls)) if _is_named(calls[at], name))
            if (at := next(names, None)) is not None:
                pairs.append((row, at))
                begin = at + 1
        return pairs

    def _divide_rest(self, run: _ProgramRun, matched: list[tuple[int, int]]) -> None:
        """The time between operators belongs to the kernels between them."""
        weights: dict[int, float] = {}
        starts = self.events["start_ns"][[row for row, _ in matched]]
        for begin, end in self._gaps(run.event):
            number = int(np.searchsorted(starts, end))
            before = matched[number - 1][1] if number else -1
            after = matched[number][1] if number < len(matched) else len(run.program.calls)
            parts = self._numbered(_between(run.program, before, after), run)
            parts = parts or ({run.around: 1.0} if run.around >= 0 else {})
            total = sum(parts.values())
            for module, work in parts.items():
                weights[module] = weights.get(module, 0.0) + (end - begin) * work / total
        if weights:
            self._put(run.event, weights)
            if run.around >= 0:
                self.module[run.event] = run.around

    def _gaps(self, row: int) -> Iterator[tuple[int, int]]:
        """The time of an event that is not in its children."""
        events = self.events
        at = int(events["start_ns"][row])
        end = at + int(events["duration_ns"][row])
        for child in self._children.get(row, ()):
            begin = int(events["start_ns"][child])
            if begin > at:
                yield at, begin
            at = max(at, begin + int(events["duration_ns"][child]))
        if end > at:
            yield at, end

    @cached_property
    def _children(self) -> dict[int, Rows]:
        parent = self.events["parent"]
        return rows_by_key(parent, np.flatnonzero(np.append(self.is_program, False)[parent]))

    def _numbered(self, parts: Parts, run: _ProgramRun) -> dict[int, float]:
        result: dict[int, float] = {}
        for path, work in parts.items():
            module = run.around if path is None else self._locate(path, run)
            result[module] = result.get(module, 0.0) + work
        return result

    def _locate(self, path: str, run: _ProgramRun) -> int:
        """A module by its path; below the module that was called, if another was compiled.

        Modules of one class share a graph, whose paths are of the first of them.
        """
        base = run.program.graph["base"]
        called = self.evidence.modules[run.around].path if run.around >= 0 else None
        if base is not None and called is not None and base != called:
            if path == base:
                path = called
            elif not base or path.startswith(base + "."):
                rest = path.removeprefix(base).lstrip(".")
                path = f"{called}.{rest}" if called else rest
        while path and path not in self.number:
            path = path.rpartition(".")[0]
        return self.number.get(path, -1)

    def _put(self, row: int, parts: dict[int, float]) -> None:
        known = [module for module in parts if module >= 0]
        if known:
            self.module[row] = innermost_around(self.evidence.modules, known)
        if known and len(parts) > 1:
            self.divided[row] = parts

    def _count(self, run: _ProgramRun) -> None:
        """Count the calls of modules inside, each time that the graph enters one."""
        last = set(enclosing(self.evidence.modules, run.around))
        for node in run.program.graph["nodes"]:
            if node["path"] is not None:
                chain = enclosing(self.evidence.modules, self._locate(node["path"], run))
                self.calls[[module for module in chain if module not in last]] += 1
                last = {*chain, *enclosing(self.evidence.modules, run.around)}

    def _follow_launches(self) -> None:
        """What a divided call runs on the CPU and on devices divides alike."""
        if not self.divided:
            return
        rows = np.array([row for row in self.divided if not self.is_program[row]], np.int64)
        of_call = at_launch(self.trace, innermost(self.events["parent"], mask_of(rows, len(self.events))))
        for row in np.flatnonzero(of_call >= 0).tolist():
            self.divided.setdefault(row, self.divided[int(of_call[row])])

    def _shares(self) -> Table:
        rows = sorted(self.divided)
        parts = [(row, *part) for row in rows for part in sorted(self.divided[row].items())]
        totals = {row: sum(self.divided[row].values()) for row in rows}
        columns: dict[str, Any] = {
            "event": [row for row, _, _ in parts],
            "module": [module for _, module, _ in parts],
            "share": [work / totals[row] for row, _, work in parts],
        }
        return Table(MODULE_SHARES, columns)


def _program(graph: Mapping[str, Any], program: Mapping[str, Any]) -> _InductorProgram:
    backward = program["backward"]
    parameters = [path is not None for path in graph["inputs"]] if backward else ()
    calls = calls_in(program["code"], parameters)
    parts = modules_of_calls(calls, graph, backward)
    return _InductorProgram(program["key"], graph, backward, calls, parts)


def _between(program: _InductorProgram, before: int, after: int) -> Parts:
    """The parts of the kernels between two calls; without any, of the next call or the last."""
    result: Parts = {}
    for at in range(before + 1, after):
        for path, work in program.parts[at].items():
            result[path] = result.get(path, 0.0) + work
    adjacent = (program.parts[at] for at in (after, before) if 0 <= at < len(program.parts))
    return result or next((parts for parts in adjacent if parts), {})


def _is_named(call: Call, name: str) -> bool:
    return call.name == name or (not call.is_kernel and call.name == f"bias_{name}")


# -- the calls in code that Inductor generated, and which modules each of them was made from
# The code names the operators of the graph that each product, and on GPUs each kernel, was made from.
# Where it names none, as for kernels in C++ and for gradients, the order of the calls does: what runs
# between two products was between them in the graph, in backward in reverse. A call that computes the
# gradient of a parameter belongs to the module of the parameter, too.
#
# Source: torch/_inductor/codegen/wrapper.py, and `get_kernel_metadata` in torch/_inductor/utils.py.

_NODES = re.compile(r"Source Nodes: \[([^\]]*)\]")
_OPERATOR = re.compile(
    r"^(?:(\w+) = )?(?:extern_kernels|aten|(?:torch\.)?ops\.\w+|torch\.ops\.\w+)\.(\w+)[\w.]*\("
)
_KERNEL = re.compile(r"^(?:(\w+) = )?((?:cpp|triton|pallas|halide)_\w+)(?:\.run)?\(")
_ASSIGNED = re.compile(r"^(\w+) = (\w+)(?:\[\d+\])?(?:;.*)?$")
_BUFFER = re.compile(r"\bbuf\d+\b")
_PRODUCT = re.compile(r"mm|conv|linear|attention|gemm|tem_fused")

_GRADIENTS = {"relu": "threshold_backward", "cross_entropy": "nll_loss", "leaky_relu": "where"}


@dataclass
class Call:
    """A call of an operator, or of a generated kernel."""

    name: str  # of the kernel, or of the operator without its library
    is_kernel: bool  # whether the kernel was generated
    nodes: tuple[str, ...] = ()  # the nodes of the graph that the code names
    gradients: tuple[int, ...] = ()  # the inputs of the graph whose gradients it computes


Parts = dict[str | None, float]
"""The modules that a call was made from, by path, None for no module, and the work of each."""


def calls_in(code: str, parameters: Sequence[bool] = ()) -> list[Call]:
    """The calls in generated code, in order.

    `parameters` says which inputs of the graph of a backward program are parameters.
    """
    calls: list[Call] = []
    writer: dict[str, int] = {}
    nodes: tuple[str, ...] = ()
    returned: list[str] = []
    for line in map(str.strip, code.splitlines()):
        if match := _NODES.search(line):
            nodes = tuple(name for name in re.split(r",\s*", match[1]) if name)
        elif match := _KERNEL.match(line) or _OPERATOR.match(line):
            calls.append(Call(match[2], match.re is _KERNEL, nodes))
            for name in {match[1] or "", *_BUFFER.findall(line)}:
                writer.setdefault(name, len(calls) - 1)
            nodes = ()
        elif (match := _ASSIGNED.match(line)) and match[2] in writer and "[" in line:
            writer[match[1]] = writer[match[2]]
        elif line.startswith("return ("):
            returned = list(_elements(line.removeprefix("return (")))
    for place, text in _gradients(returned, parameters):
        buffer = _BUFFER.search(text)
        if buffer and (by := writer.get(buffer[0])) is not None:
            calls[by].gradients += (place,)
    return calls


def _elements(text: str) -> Iterator[str]:
    """The elements of a tuple, up to the parenthesis that closes it."""
    depth, begin = 0, 0
    for place, letter in enumerate(text):
        if letter in "([":
            depth += 1
        elif letter in ")]" and depth:
            depth -= 1
        elif letter in ",)" and not depth:
            if text[begin:place].strip():
                yield text[begin:place].strip()
            begin = place + 1
            if letter == ")":
                return


def _gradients(returned: list[str], parameters: Sequence[bool]) -> list[tuple[int, str]]:
    """Inputs with what a backward program returns for them.

    With symbolic shapes a program has fewer inputs than its graph; those that are parameters stay.
    """
    if len(returned) == len(parameters):
        return list(enumerate(returned))
    some = [text for text in returned if text != "None"]
    places = [place for place, is_parameter in enumerate(parameters) if is_parameter]
    return list(zip(places, some, strict=True)) if len(some) == len(places) else []


def modules_of_calls(calls: Sequence[Call], graph: Mapping[str, Any], backward: bool) -> list[Parts]:
    """The modules that each call was made from; empty where nothing is known."""
    return _Reading(calls, graph, backward).result()


class _Reading:
    def __init__(self, calls: Sequence[Call], graph: Mapping[str, Any], backward: bool) -> None:
        self.calls, self.backward = calls, backward
        self.nodes = list(graph["nodes"])
        self.place = {node["name"]: place for place, node in enumerate(self.nodes)}
        self.reader: dict[int, int] = {
            read: place
            for place, node in reversed(list(enumerate(self.nodes)))
            for read in node["reads"]
            if graph["inputs"][read] is not None
        }

    def result(self) -> list[Parts]:
        anchors = [None if call.is_kernel else self._anchor(call) for call in self.calls]
        known = [place for place, anchor in enumerate(anchors) if anchor is not None]
        result: list[Parts] = [{} for _ in self.calls]
        for before, after in pairwise([-1, *known, len(self.calls)]):
            between = self._between(
                anchors[before] if before >= 0 else None, anchors[after] if after < len(anchors) else None
            )
            for number in range(before + 1, after):
                result[number] = self._parts(self.calls[number], between)
        for number, anchor in enumerate(anchors):
            if anchor is not None:
                result[number] = self._summed([anchor], True)
        return result

    def _anchor(self, call: Call) -> int | None:
        """The node of the graph that an operator computes, or whose gradients it computes."""
        for place in call.gradients:
            if place in self.reader:
                return self.reader[place]
        named: list[int] = [self.place[name] for name in call.nodes if name in self.place]
        if not named:
            return None
        return named[0] if self.backward else named[-1]

    def _between(self, before: int | None, after: int | None) -> range:
        """Places of nodes after one product and before the next."""
        first, last = (after, before) if self.backward else (before, after)
        low = -1 if first is None else first
        return range(low + 1, len(self.nodes) if last is None else last)

    def _parts(self, call: Call, between: range) -> Parts:
        gradients = [self.reader[at] for at in call.gradients if at in self.reader]
        named = [self.place[name] for name in call.nodes if name in self.place]
        named = named or self._alike(call, between, bool(gradients))
        return self._summed([*named, *gradients], bool(_PRODUCT.search(call.name)))

    def _alike(self, call: Call, between: range, is_known: bool) -> list[int]:
        """Of some nodes those that a call's name has; all of them if nothing else is known."""
        multiplies = bool(_PRODUCT.search(call.name))
        fitting = [at for at in between if bool(self.nodes[at]["operations"]) == multiplies]
        if call.is_kernel and multiplies:
            fitting = list(between)
        alike = [at for at in fitting if _is_in(self.nodes[at]["target"], call.name)]
        return alike or ([] if is_known else fitting)

    def _summed(self, places: Sequence[int], multiplies: bool) -> Parts:
        result: Parts = {}
        for place in dict.fromkeys(places):
            node = self.nodes[place]
            work = node["elements"] + (node["operations"] if multiplies else 0)
            result[node["path"]] = result.get(node["path"], 0.0) + max(float(work), 1.0)
        return result


def _is_in(target: str, kernel: str) -> bool:
    """Whether the name of a kernel, made of its operators', has an operator or its gradient."""
    operator = target.strip("_").lower()
    return operator in kernel or _GRADIENTS.get(operator, kernel + "_") in kernel
