"""The tree of a collector in plain Python."""

from __future__ import annotations

from dataclasses import dataclass
from types import FrameType
from typing import Any

from stepscope.capture.contexts.context_options import KINDS

Key = tuple[int, str, str, int, str]
_MODULE, _PYTHON = KINDS.index("module"), KINDS.index("python")


def key_of_frame(frame: FrameType) -> Key:
    """The key of a Python frame."""
    code = frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    return (_PYTHON, name, code.co_filename, frame.f_lineno or 0, "")


@dataclass
class RunningStat:
    """Statistics of the values so far."""

    count: int = 0
    sum: int = 0
    min: int = 1 << 63
    max: int = 0
    squares: float = 0.0

    def add(self, value: int) -> None:
        """Count one more value."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)
        self.squares += float(value) ** 2


class ContextNodes:
    """The nodes of a tree of contexts, by parent and key.

    Args:
        limit: nodes to keep at most.
    """

    def __init__(self, limit: int) -> None:
        self.stats: dict[int, RunningStat] = {}
        self.dropped = 0
        self._limit = limit
        self._index: dict[tuple[int, Key], int] = {}
        self._nodes: list[tuple[int, Key]] = [(-1, (0, "", "", 0, ""))]

    def child(self, parent: int, key: Key) -> int:
        """The node of a frame below another, made where it is new; the parent past the limit."""
        found = self._index.get((parent, key))
        if found is not None:
            return found
        if len(self._nodes) >= self._limit:
            self.dropped += 1
            return parent
        self._nodes.append((parent, key))
        self._index[parent, key] = len(self._nodes) - 1
        return len(self._nodes) - 1

    def columns(self, module_names: dict[int, str]) -> dict[str, Any]:
        """The tables of nodes and strings of contexts.json."""
        strings: dict[str, int] = {"": 0}
        nodes: dict[str, list[int]] = {
            name: [] for name in ("parent", "kind", "relation", "name", "file", "line", "class")
        }
        for parent, (kind, name, file, line, cls) in list(self._nodes):
            shown = module_names[int(name)] if kind == _MODULE else name
            texts = [strings.setdefault(text, len(strings)) for text in (shown, file, cls)]
            row = (parent, kind, 0, texts[0], texts[1], line, texts[2])
            for column, value in zip(nodes.values(), row, strict=True):
                column.append(value)
        return {"strings": list(strings), "kinds": KINDS, "nodes": nodes}


def rows_of(
    stats: dict[int, RunningStat], nesting: str = "inclusive",
    meaning: str = "time on the CPU thread",
) -> dict[str, Any]:  # fmt: skip
    """A metric of contexts.json, in nanoseconds."""
    rows = [(node, stats[node]) for node in sorted(stats)]
    return {
        "unit": "ns", "nesting": nesting, "meaning": meaning,
        "node": [node for node, _ in rows],
        **{name: [getattr(stat, name) for _, stat in rows]
           for name in ("count", "sum", "min", "max", "squares")},
    }  # fmt: skip
