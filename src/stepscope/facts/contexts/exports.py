"""A tree as a file: folded stacks, speedscope's profile, plain columns.

Sources: Brendan Gregg's FlameGraph, stackcollapse.pl and flamegraph.pl: one line per stack, its
frames joined by semicolons, then a number. https://www.speedscope.app/file-format-schema.json: a
`sampled` profile is a list of stacks, each with a weight.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from stepscope.facts.contexts.metrics import SampleStats
from stepscope.facts.contexts.node_values import default_measure, measure, plain_numbers
from stepscope.facts.contexts.tree import ContextTree

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"ns": "nanoseconds", "B": "bytes"}
_DEEPEST = 1000  # frames of a stack, as many as Python runs: each stack has all above it
Frame = dict[str, Any]


def to_folded(tree: ContextTree, by: str) -> Iterator[str]:
    """The lines of a file of folded stacks, without line ends, by a measure as `measure` takes it.

    Exclusive values are rounded to integers; nodes without one have no line.
    """
    value = np.rint(measure(tree, by).own).astype(np.int64)
    stacks, depth = [""], tree.depth.tolist()
    for node, above in enumerate(tree.parent.tolist()):
        if depth[node] > _DEEPEST:
            stacks.append(stacks[above])
        elif node:
            caller = f"{stacks[above]};" if above else ""
            stacks.append(caller + _folded_frame(tree, node))
        if value[node] > 0:
            yield f"{stacks[node] or tree.label(0)} {value[node]}"


def _folded_frame(tree: ContextTree, node: int) -> str:
    """A node's name and its location in brackets; separators of frames and lines are replaced."""
    file, line = tree.nodes.text("file")[node], int(tree.nodes["line"][node])
    place = f" ({file}{f':{line}' if line >= 0 else ''})" if file else ""
    return " ".join(f"{tree.label(node)}{place}".replace(";", ",").split()) or "(unnamed)"


def to_speedscope(tree: ContextTree, by: Sequence[str], name: str = "") -> dict[str, Any]:
    """A dict that `json` can write and speedscope opens by a name, one profile for each of some measures.

    There is at least one measure, each as `measure` takes it.
    """
    frames, frame_of_node = _frames(tree)
    # The frames from the root to each node, without the root.
    stacks, depth = [list[int]()], tree.depth.tolist()
    for node, above in enumerate(tree.parent.tolist()[1:], 1):
        stacks.append(stacks[above] if depth[node] > _DEEPEST else [*stacks[above], frame_of_node[node]])
    return {
        "$schema": _SCHEMA,
        "exporter": "stepscope",
        "name": name or tree.source or "contexts",
        "activeProfileIndex": by.index(first) if (first := default_measure(tree)) in by else 0,
        "shared": {"frames": frames},
        "profiles": [_profile(tree, name, stacks) for name in by],
    }


def _frames(tree: ContextTree) -> tuple[list[Frame], list[int]]:
    numbers: dict[tuple[str, str, int], int] = {}
    files = [file or "" for file in tree.nodes.text("file")]
    lines = tree.nodes["line"].tolist()
    of_node = [
        numbers.setdefault((tree.label(node) or "(unnamed)", files[node], lines[node]), len(numbers))
        for node in range(len(tree))
    ]
    return [
        {"name": name, **({"file": file} if file else {}), **({"line": line} if file and line >= 0 else {})}
        for name, file, line in numbers
    ], of_node


def _profile(tree: ContextTree, by: str, stacks: list[list[int]]) -> dict[str, Any]:
    shown = measure(tree, by)
    rows = np.flatnonzero(shown.own > 0)
    weights = shown.own[rows]
    return {
        "type": "sampled",
        "name": shown.meaning,
        "unit": _UNITS.get(shown.unit, "none"),
        "startValue": 0,
        "endValue": plain_numbers(weights.sum(keepdims=True))[0],
        "samples": [stacks[row] or [0] for row in rows.tolist()],
        "weights": plain_numbers(weights),
    }


def to_columns(tree: ContextTree) -> dict[str, Any]:
    """Nodes and metrics as lists of equal length, null for unknown values.

    `nodes` has the columns of the table `contexts`; each of `metrics` has its unit, its meaning
    and, in `own` and `inclusive`, a list for each statistic.
    """
    rows = list(tree.nodes.rows())
    names = [column.name for column in tree.nodes.schema.columns]
    return {
        "source": tree.source,
        "nodes": {name: [row[name] for row in rows] for name in names},
        "metrics": {name: _metric(tree, name) for name in tree.metrics},
        "notes": [structs.asdict(note) for note in tree.notes],
    }


def _metric(tree: ContextTree, name: str) -> dict[str, Any]:
    about = structs.asdict(tree.metric(name))
    del about["name"]
    own, inclusive = _statistics(tree.own(name)), _statistics(tree.inclusive(name))
    return about | {"own": own, "inclusive": inclusive}


def _statistics(stats: SampleStats) -> dict[str, list[Any]]:
    return {
        name: plain_numbers(getattr(stats, name)) for name in ("count", "sum", "min", "max", "mean", "std")
    }
