"""Parameters of compiled programs: the modules that own them, and that updates belong to.

JAX names each argument of a program by its path: `params['params']['block_0']['Dense_0']['kernel']`
in Flax's linen, `params['block_0/down']['b']` in Haiku. The optimizer's state has the same paths
below others (`state[0].mu['params']…`). Where arguments are only numbered (nnx, Equinox, Keras),
the parameters of a module are those that its forward pass takes first and that a gradient updates.

docs/design/modules.md says which module an update belongs to.

Source: JAX's `jax.tree_util.keystr`, in the metadata of the parameters of an HLO program.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from stepscope.base.arrays import Ids32
from stepscope.facts.annotate.module_evidence import Evidence, innermost_around
from stepscope.trace.trace import Trace

_KEY = re.compile(r"\['([^']*)'\]|\[(\d+)\]|\.?(\w+)")
Path = tuple[str, ...]


class Size(NamedTuple):
    """Elements and bytes of some parameters."""

    elements: int = 0
    bytes: int = 0


def parameter_sizes(arguments: Iterable[Sequence[Any]], modules: Sequence[Path]) -> dict[Path, Size]:
    """The parameters of each module, those of its children included; empty if unknown.

    Args:
        arguments: name, elements and bytes of each argument of the training function, and more.
        modules: paths of modules. The first name may be the model's own, which the arguments lack.
    """
    root, known = _root(modules), set(modules)
    by_prefix: dict[Path, dict[Path, Size]] = defaultdict(lambda: defaultdict(Size))
    for name, elements, size, *_ in arguments:
        keys = _keys(name)
        for place in range(1, len(keys) - 1):
            for owner in {keys[place:-1], root + keys[place:-1]} & known:
                found = by_prefix[keys[:place]]
                before = found[owner]
                found[owner] = Size(before.elements + elements, before.bytes + size)
    if not by_prefix:
        return {}
    chosen = max(by_prefix, key=lambda prefix: (len(by_prefix[prefix]), -len(prefix)))
    return _with_children(by_prefix[chosen])


def owner_of(name: str, modules: Collection[Path]) -> Path:
    """The path of the innermost module that the name of an argument holds, empty if none.

    Example:
        >>> owner_of("state[0].mu['params']['Dense_0']['kernel']", [("Net",), ("Net", "Dense_0")])
        ('Net', 'Dense_0')
    """
    keys, root = _keys(name), _root(modules)
    places = range(1, len(keys) - 1)
    found = (path for place in places for path in (root + keys[place:-1], keys[place:-1]))
    return next((path for path in found if path in modules), ())


def sizes_by_use(arguments: Iterable[tuple[Path, int, int]]) -> dict[Path, Size]:
    """The parameters of each module, from elements and bytes of those that it takes itself."""
    own: dict[Path, Size] = defaultdict(Size)
    for path, elements, size in arguments:
        own[path] = Size(own[path].elements + elements, own[path].bytes + size)
    return _with_children(own)


def _root(modules: Iterable[Path]) -> Path:
    """The name of the model, if it is the only one."""
    roots = {path[:1] for path in modules}
    return next(iter(roots)) if len(roots) == 1 else ()


def _keys(name: str) -> Path:
    """The keys of an argument's path; those of Haiku hold several names."""
    found = (next(filter(None, match.groups()), "") for match in _KEY.finditer(name))
    return tuple(part for key in found for part in key.split("/"))


def _with_children(own: Mapping[Path, Size]) -> dict[Path, Size]:
    result: dict[Path, Size] = defaultdict(Size)
    for path, size in own.items():
        for depth in range(1, len(path) + 1):
            before = result[path[:depth]]
            result[path[:depth]] = Size(before.elements + size.elements, before.bytes + size.bytes)
    return dict(result)


# -- updates

_NONE = -1
_Input = dict[str, Any]


def with_updates(trace: Trace, evidence: Evidence) -> Ids32:
    """The module of each event, as the evidence has it, with those of operations on gradients; (events,)."""
    events = trace.events
    updates = events.text("stage").mask("optimizer", "backward") & (events["origin"] >= 0)
    updates &= evidence.call_of < 0
    module = _modules_by_group(trace, evidence, set(np.unique(events["origin"][updates]).tolist()))
    table = np.full(len(trace["origins"]) + 1, _NONE, np.int32)
    table[list(module)] = list(module.values())
    return np.where(updates, table[events["origin"]], evidence.call_of).astype(np.int32)


def _modules_by_group(trace: Trace, evidence: Evidence, wanted: set[int]) -> dict[int, int]:
    inputs: dict[int, list[_Input]] = defaultdict(list)
    for row in trace["inputs"].rows():
        if row["first"] in wanted:
            inputs[row["first"]].append(row)
    owners = _Owners(trace, evidence)
    return {first: owners.of(rows) for first, rows in inputs.items()}


class _Owners:
    """Finds the modules that inputs of compiled operations belong to."""

    def __init__(self, trace: Trace, evidence: Evidence) -> None:
        self._modules, self._of_origin = evidence.modules, evidence.of_origin
        self._by_path: dict[Path, int] = {
            tuple(module.path.split(".")): number for number, module in enumerate(evidence.modules)
        }
        self._uses = {
            name: (scope, frame)
            for name, _, _, scope, frame, _ in trace.metadata.properties.get("arguments", ())
            if scope
        }
        roots = [number for number, module in enumerate(evidence.modules) if module.parent < 0]
        self._model = roots[0] if len(roots) == 1 else _NONE

    def of(self, inputs: Sequence[_Input]) -> int:
        """The module around all inputs, by names of arguments, else their uses, else gradients."""
        names = [row["argument"] for row in inputs if row["argument"]]
        gradients = [(row["scope"], row["frame"]) for row in inputs if not row["argument"]]
        kinds = (
            (self._by_path.get(owner_of(name, self._by_path), _NONE) for name in names),
            (self._origin(*self._uses[name]) for name in names if name in self._uses),
            (self._origin(*gradient) for gradient in gradients),
        )
        found = ([module for module in kind if module >= 0] for kind in kinds)
        return innermost_around(self._modules, next(filter(None, found), [self._model]))

    def _origin(self, scope: str | None, frame: int | None) -> int:
        return self._of_origin(scope or "", _NONE if frame is None else frame)
