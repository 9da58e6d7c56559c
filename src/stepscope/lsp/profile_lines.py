"""From a profile of an entry file to the costs of its lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.lsp.measured_costs import FileCosts, LineCost, Part
from stepscope.lsp.text_document import split_lines

Json = Mapping[str, Any]


def costs_by_file(
    lines: Iterable[Json], step_ms: float, texts: Mapping[str, str]
) -> dict[str, FileCosts]:
    """Costs by file.

    Args:
        lines: rows of the breakdown of `stepscope batch --json`.
        step_ms: the step's length.
        texts: what was measured, by path; other files are read as they are.

    Returns:
        Costs by path, with the text that their lines belong to. Files that cannot be read are left
        out: they cannot be shown.
    """
    found: dict[str, dict[int, LineCost]] = {}
    for row in lines:
        costs = found.setdefault(str(Path(row["file"]).resolve()), {})
        costs[row["line"]] = _cost(row, step_ms)
    read = {path: _text(path, texts) for path in found}
    return {path: FileCosts(text, found[path]) for path, text in read.items() if text is not None}


def _cost(row: Json, step_ms: float) -> LineCost:
    return LineCost(
        row["line"],
        row["ms"] / step_ms if step_ms else 0.0,
        row["forward_ms"],
        row["backward_ms"],
        row["weights_bytes"],
        row["activations_bytes"],
        tuple(Part(one["path"], one["ms"]) for one in row["modules"]),
        tuple(Part(one["name"], one["ms"]) for one in row["operators"]),
    )


def _text(path: str, texts: Mapping[str, str]) -> Sequence[str] | None:
    try:
        text = texts[path] if path in texts else Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return split_lines(text)
