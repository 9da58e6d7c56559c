"""Where the user's code creates optimizers, loaders and such, and how the loaders load."""

import ast
import functools
import linecache
import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import count
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader, dataloader

from stepscope.record.call_sites import is_library, self_of, user_frame
from stepscope.record.padding import Padding
from stepscope.record.patch import Hooks, ignoring, replace
from stepscope.record.torch_internals import hide_from_compiler

_BASES = (("optimizer", Optimizer), ("loader", DataLoader), ("ddp", DistributedDataParallel))
_ANOMALY = ("anomaly_detection", torch.autograd.set_detect_anomaly)  # detect_anomaly() warns of its caller
_MOST = 50  # a program may create them in a loop
_LONGEST = 2000  # characters of a call
_MEASURED = 4  # first batches of a loader, chosen: they come before the recorded steps


class CreationWatch(Hooks):
    """Notes the calls that create optimizers, loaders and DDP models; `on_optimizer` gets each optimizer."""

    def __init__(self, on_optimizer: Callable[[object], object] = id) -> None:
        self._found: dict[tuple[str, str, str, int], None] = {}
        created = {"optimizer": on_optimizer}
        self._restore = [self._watch(what, cls, created.get(what, id)) for what, cls in (*_BASES, _ANOMALY)]

    def describe(self) -> list[dict[str, Any]]:
        """What was created (as `_BASES` has it), of which class, and where."""
        return [
            {"what": what, "class": name, "file": file, "line": line, **call_at(file, line, name)}
            for what, name, file, line in self._found
        ]

    def _watch(self, what: str, cls: Any, created: Callable[[object], object]) -> Callable[[], None]:
        original = cls.__init__

        @functools.wraps(original)
        def watched(self: Any, *args: Any, **kwargs: Any) -> None:
            note(what, type(self).__name__, _creator_of(self))
            original(self, *args, **kwargs)
            with ignoring(Exception):  # the program's own class may not even be hashable
                created(self)

        note = self._note
        return replace(cls, "__init__", watched)

    def _note(self, what: str, name: str, frame: FrameType | None) -> None:
        if frame is None or len(self._found) >= _MOST or torch.compiler.is_compiling():
            return
        self._found.setdefault((what, name, frame.f_code.co_filename, frame.f_lineno))


def _creator_of(made: Any) -> FrameType | None:
    """The frame that creates an object; a constructor of a library's own class only calls the one above."""
    frame = user_frame(sys._getframe(1))
    while frame is not None and is_library(frame.f_code.co_filename) and self_of(frame) is made:
        frame = user_frame(frame.f_back)
    return frame


def call_at(file: str, line: int, name: str) -> dict[str, Any]:
    """The source of the call of a class around a line, all of its lines, and whether a loop repeats it.

    Both are empty if the file cannot be read, or if another name is called there.
    """
    text = "".join(lines := linecache.getlines(file))
    try:
        nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError, MemoryError, SystemError):
        nodes = []
    names = {name, *_aliases(nodes, name)}
    calls = [
        node
        for node in nodes
        if isinstance(node, ast.Call)
        and node.lineno <= line <= (node.end_lineno or node.lineno)
        and getattr(node.func, "attr", getattr(node.func, "id", "")) in names
    ]
    call = ast.get_source_segment(text, calls[0]) if len(calls) == 1 else None
    if call is None or len(call) > _LONGEST:
        return {"call": "", "source": ""}
    source = "".join(lines[calls[0].lineno - 1 : calls[0].end_lineno]).removesuffix("\n")
    loops = (node for node in nodes if isinstance(node, ast.For | ast.AsyncFor | ast.While))
    in_loop = any(calls[0] in ast.walk(part) for loop in loops for part in loop.body)
    return {"call": call, "source": source, "in_loop": in_loop}


def _aliases(nodes: Iterable[ast.AST], name: str) -> list[str]:
    """Other names of an imported class, as `DDP` of DistributedDataParallel."""
    imports = (node for node in nodes if isinstance(node, ast.ImportFrom))
    imported = (alias for node in imports for alias in node.names if alias.name == name)
    return [alias.asname for alias in imported if alias.asname]


_Iterator: Any = dataloader._BaseDataLoaderIter
_ATTRIBUTES = {
    "workers": "_num_workers",
    "pin_memory": "_pin_memory",
    "prefetch_factor": "_prefetch_factor",
    "persistent_workers": "_persistent_workers",
}


class LoaderWatch:
    """Tracks the iterators of data loaders created since it was installed, while they live."""

    def __init__(self) -> None:
        self._padding: weakref.WeakKeyDictionary[Any, list[Padding]] = weakref.WeakKeyDictionary()
        original = _Iterator.__init__

        def watched(iterator: Any, *args: Any, **kwargs: Any) -> None:
            original(iterator, *args, **kwargs)
            self._measure(iterator)

        self.remove = replace(_Iterator, "__init__", watched)  # known iterators stay known

    def _measure(self, iterator: Any) -> None:
        """How much of the iterator's first batches is padding; it keeps no watch of ours afterwards."""
        self._padding[iterator] = found = []
        known, numbers = weakref.ref(iterator), count(1)

        def next_data() -> Any:
            iterator: Any = known()
            batch = type(iterator)._next_data(iterator)
            with ignoring(Exception), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                if padding := Padding.of(batch):
                    found.append(padding)
                if next(numbers) >= _MEASURED:
                    vars(iterator).pop("_next_data", None)
            return batch

        hide_from_compiler(next_data.__code__)
        iterator._next_data = next_data

    @property
    def are_in_use(self) -> bool:
        return len(self._padding) > 0

    def describe(self) -> list[dict[str, Any]]:
        loaders = [
            {name: getattr(iterator, attribute, None) for name, attribute in _ATTRIBUTES.items()}
            | {"iterable": getattr(iterator, "_dataset_kind", None) == dataloader._DatasetKind.Iterable}
            | dict(zip(Padding._fields, map(sum, zip(*found, strict=True)), strict=False))
            | _collating(iterator)
            for iterator, found in self._padding.items()
        ]
        return sorted(loaders, key=lambda facts: -(facts["workers"] or 0))


def _collating(iterator: Any) -> dict[str, Any]:
    """The user's function that makes batches of samples, and where it begins."""
    code = getattr(getattr(iterator, "_collate_fn", None), "__code__", None)
    if code is None or is_library(code.co_filename):
        return {}
    return {"collate": code.co_name, "collate_file": code.co_filename, "collate_line": code.co_firstlineno}
