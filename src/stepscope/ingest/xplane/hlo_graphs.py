"""Which instruction of a program each kernel of a CUDA graph executes.

XLA launches parts of a program as CUDA graphs (`xla_gpu_enable_command_buffer`). Their kernels name
the graph instead of an instruction. Kernels that XLA compiles are named after an instruction: of
equal ones, all run the kernel of one. Kernels of libraries follow the instruction that makes their
input.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence

_NUMBER = re.compile(r"[._]\d+$")
_COPY = re.compile(r"^memcpy", re.IGNORECASE)
_SET = re.compile(r"^memset", re.IGNORECASE)
_LAUNCHED = ("fusion", "custom-call", "copy", "copy-start", "sort", "fft", "scatter")
_LIBRARY, _OTHER = "library", "other"


def instructions_of_graph(kernels: Sequence[str], program: Sequence[tuple[str, str]]) -> list[str]:
    """The name of the instruction of each kernel, empty if unknown.

    A name that occurs once in both is found wherever it is. Of others the families are compared,
    names without their numbers: if a family has as many kernels as instructions, they are paired in
    order. A kernel of a library is the next call of one after the instruction of the kernel before,
    or the first that is left.

    Args:
        kernels: names in order of time.
        program: name and opcode of each instruction of the program, in order.

    Example:
        >>> instructions_of_graph(
        ...     ["add_fusion_1", "Memset", "sm90_gemm", "add_fusion_1", "ampere_gemm"],
        ...     [("add_fusion.1", "fusion"), ("dot.5", "custom-call"), ("add_fusion.2", "fusion"),
        ...      ("dot.7", "custom-call")],
        ... )
        ['add_fusion.1', 'dot.5', 'dot.5', 'add_fusion.2', 'dot.7']
    """
    launched = [(name, opcode) for name, opcode in program if opcode in _LAUNCHED]
    by_kernel = {_as_kernel(name): at for at, (name, _) in enumerate(launched)}
    once = {name for name, count in Counter(kernels).items() if count == 1}
    found = {at: by_kernel[name] for at, name in enumerate(kernels)
             if name in once and name in by_kernel}  # fmt: skip
    families = [_family_of_kernel(name, by_kernel) for name in kernels]
    found |= _by_family(families, _families(launched, set(families)), found)
    found |= _of_libraries(families, launched, found)
    names = [launched[found[at]][0] if at in found else "" for at in range(len(kernels))]
    return _with_memory_set(kernels, names)


def _by_family(ours: Sequence[str], theirs: Sequence[str], found: dict[int, int]) -> dict[int, int]:
    """Pairs of families with as many kernels as instructions, in order."""
    taken = set(found.values())
    kernels, instructions = defaultdict(list), defaultdict(list)
    for at, family in enumerate(ours):
        if at not in found and family != _LIBRARY:
            kernels[family].append(at)
    for at, family in enumerate(theirs):
        if at not in taken:
            instructions[family].append(at)
    result: dict[int, int] = {}
    for family, mine in kernels.items():
        if len(mine) == len(instructions[family]):
            result.update(zip(mine, instructions[family], strict=True))
    return result


def _of_libraries(
    ours: Sequence[str], launched: Sequence[tuple[str, str]], found: dict[int, int]
) -> dict[int, int]:
    """The next free call of a library after the instruction of the kernel before."""
    calls = [at for at, (_, opcode) in enumerate(launched) if opcode == "custom-call"]
    free = _NextFree(len(calls))
    result: dict[int, int] = {}
    last = -1
    for at, family in enumerate(ours):
        last = found.get(at, last)
        if family == _LIBRARY and at not in found and len(result) < len(calls):
            last = calls[free.take(bisect_right(calls, last))]
            result[at] = last
    return result


class _NextFree:
    """Places from 0 on, each taken at most once; they are found in linear time (union-find)."""

    def __init__(self, count: int) -> None:
        self._next = list(range(count + 1))  # a free place, or one nearer to the next free one

    def take(self, place: int) -> int:
        """Take the first free place from `place` on, or else from 0 on."""
        found = self._find(place)
        if found == len(self._next) - 1:
            found = self._find(0)
        self._next[found] = found + 1
        return found

    def _find(self, place: int) -> int:
        root = place
        while self._next[root] != root:
            root = self._next[root]
        while self._next[place] != root and place != root:
            self._next[place], place = root, self._next[place]
        return root


def _as_kernel(name: str) -> str:
    return name.replace(".", "_").replace("-", "_")


def _family_of_kernel(name: str, by_kernel: dict[str, int]) -> str:
    if _SET.match(name):
        return ""
    if name in by_kernel:
        return _NUMBER.sub("", name)
    return _OTHER if _COPY.match(name) else _LIBRARY


def _families(launched: Sequence[tuple[str, str]], known: set[str]) -> list[str]:
    """The family of each instruction; copies have names of their own."""
    names = (_NUMBER.sub("", _as_kernel(name)) for name, _ in launched)
    return [
        _LIBRARY if opcode == "custom-call" else name if name in known else _OTHER
        for name, (_, opcode) in zip(names, launched, strict=True)
    ]


def _with_memory_set(kernels: Sequence[str], names: list[str]) -> list[str]:
    """Names where memory is set for the kernel that follows."""
    following = ""
    for at in reversed(range(len(names))):
        if _SET.match(kernels[at]):
            names[at] = following
        following = names[at]
    return names
