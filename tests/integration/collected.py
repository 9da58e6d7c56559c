"""contexts.json of a capture, read without stepscope, in words."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Context:
    """A node of the tree."""

    kind: str
    name: str
    file: str
    line: int
    cls: str
    backward: bool
    parent: Context | None
    children: list[Context] = field(default_factory=list)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def path(self) -> list[Context]:
        """From the root to this one."""
        return [*(self.parent.path if self.parent else []), self]

    @property
    def count(self) -> int:
        return int(self.metrics.get("cpu_ns", {}).get("count", 0))

    @property
    def cpu_ns(self) -> int:
        return int(self.metrics.get("cpu_ns", {}).get("sum", 0))

    def below(self) -> Iterator[Context]:
        """This one and all below it."""
        yield self
        for child in self.children:
            yield from child.below()

    def lines(self, file: Path | str) -> list[int]:
        """The lines of `file` on the way here, outermost first."""
        return [c.line for c in self.path if c.kind == "python" and c.file == str(file)]

    def __repr__(self) -> str:
        return " > ".join(f"{c.kind}:{c.name}:{c.line}" for c in self.path)


@dataclass
class Collected:
    """A capture of contexts."""

    manifest: dict[str, Any]
    content: dict[str, Any]
    contexts: list[Context]

    @classmethod
    def read(cls, path: Path) -> Collected:
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
            content = json.loads(archive.read("contexts.json"))
            return cls(json.loads(archive.read("manifest.json")), content, _contexts(content))

    @property
    def root(self) -> Context:
        return self.contexts[0]

    def named(self, name: str, kind: str | None = None) -> list[Context]:
        return [c for c in self.contexts if c.name == name and kind in (None, c.kind)]

    def of_kind(self, kind: str) -> list[Context]:
        return [c for c in self.contexts if c.kind == kind]

    def counts(self) -> dict[str, int]:
        """How often each operator and annotation ran."""
        found: dict[str, int] = {}
        for context in self.contexts:
            if context.count:
                found[context.name] = found.get(context.name, 0) + context.count
        return found


def _contexts(content: dict[str, Any]) -> list[Context]:
    nodes, strings = content["nodes"], content["strings"]
    contexts: list[Context] = []
    for parent, kind, relation, name, file, line, cls in zip(*nodes.values(), strict=True):
        above = contexts[parent] if parent >= 0 else None
        context = Context(
            content["kinds"][kind], strings[name], strings[file], line, strings[cls], bool(relation), above
        )
        contexts.append(context)
        if above:
            above.children.append(context)
    for metric, table in content["metrics"].items():
        columns = ("count", "sum", "min", "max", "squares")
        for node, *row in zip(table["node"], *(table[c] for c in columns), strict=True):
            contexts[node].metrics[metric] = dict(zip(columns, row, strict=True))
    return contexts
