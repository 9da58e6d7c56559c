"""The calls in code that Inductor generated, and which modules each of them was made from.

The code names the operators of the graph that each product, and on GPUs each kernel, was made from.
Where it names none, as for kernels in C++ and for gradients, the order of the calls does: what runs
between two products was between them in the graph, in backward in reverse. A call that computes the
gradient of a parameter belongs to the module of the parameter, too.

Source: torch/_inductor/codegen/wrapper.py, and `get_kernel_metadata` in torch/_inductor/utils.py.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

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

    Args:
        parameters: of a backward program which inputs of its graph are parameters.

    Example:
        >>> calls_in("# Source Nodes: [y], Original ATen: [aten.mm]\\nextern_kernels.mm(a, b)")
        [Call(name='mm', is_kernel=False, nodes=('y',), gradients=())]
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
