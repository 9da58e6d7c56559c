"""A tree as a file for speedscope.

Source: https://www.speedscope.app/file-format-schema.json (speedscope's `lib/file-format-spec.ts`):
a `sampled` profile is a list of stacks, each with a weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stepscope.contexts.node_values import MEASURES, default_measure, measure
from stepscope.contexts.tree import ContextTree

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"ns": "nanoseconds", "B": "bytes"}
Frame = dict[str, Any]


def to_speedscope(tree: ContextTree, by: Sequence[str], name: str = "") -> dict[str, Any]:
    """A dict that `json` can write and speedscope opens, one profile per measure.

    Args:
        tree: any tree.
        by: measures, as `measure` takes them; at least one.
        name: the file name that speedscope shows.
    """
    frames, frame_of_node = _frames(tree)
    stacks = _stacks(tree, frame_of_node)
    return {
        "$schema": _SCHEMA,
        "exporter": "stepscope",
        "name": name or tree.source or "contexts",
        "activeProfileIndex": by.index(first) if (first := default_measure(tree)) in by else 0,
        "shared": {"frames": frames},
        "profiles": [_profile(tree, name, stacks) for name in by],
    }


def _frames(tree: ContextTree) -> tuple[list[Frame], list[int]]:
    """Distinct frames, and the frame of each node."""
    numbers: dict[tuple[str, str, int], int] = {}
    files = [file or "" for file in tree.nodes.text("file")]
    lines = tree.nodes["line"].tolist()
    of_node = [
        numbers.setdefault(
            (tree.label(node) or "(unnamed)", files[node], lines[node]), len(numbers)
        )
        for node in range(len(tree))
    ]
    return [_frame(*key) for key in numbers], of_node


def _frame(name: str, file: str, line: int) -> Frame:
    frame: Frame = {"name": name}
    if file:
        frame["file"] = file
        if line >= 0:
            frame["line"] = line
    return frame


def _stacks(tree: ContextTree, frame_of_node: list[int]) -> list[list[int]]:
    """The frames from the root to each node, without the root."""
    stacks: list[list[int]] = [[]]
    for node, above in enumerate(tree.parent.tolist()[1:], 1):
        stacks.append([*stacks[above], frame_of_node[node]])
    return stacks


def _profile(tree: ContextTree, by: str, stacks: list[list[int]]) -> dict[str, Any]:
    found = measure(tree, by)
    rows = np.flatnonzero(found.own > 0)
    weights = found.own[rows]
    label = MEASURES[by][2] if by in MEASURES else by
    return {
        "type": "sampled",
        "name": label,
        "unit": _UNITS.get(found.unit, "none"),
        "startValue": 0,
        "endValue": _plain(float(weights.sum())),
        "samples": [stacks[row] or [0] for row in rows.tolist()],
        "weights": [_plain(weight) for weight in weights.tolist()],
    }


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() else value
