"""Generates `docs/evidence/papers.md` from `tests/papers.json`: the papers' claims and their tests."""

from __future__ import annotations

from pathlib import Path

import msgspec

CLAIMS = Path(__file__).parents[1] / "tests/papers.json"
_TITLES = {
    "skyline": "SKYLINE: batch sizes in the editor",
    "daydream": "DAYDREAM: what an optimization would gain",
    "deepcontext": "DEEPCONTEXT: calling contexts",
    "hotline": "HOTLINE: timelines that annotate themselves",
}
_HOME = "https://github.com/stepscope/stepscope/blob/main"
_HEAD = """\
# The papers' claims

This page is generated: change `tests/papers.json` and run \
`python scripts/papers_docs.py > docs/evidence/papers.md`.

stepscope follows four [papers](../bibliography.md). Of their {all} claims, {held} are each held by \
one test or benchmark; {open} need something first. A unit test checks that each named test exists. \
Tests of `tests/gpu` read [what was measured on a GPU](gpu_evidence.md).
"""


class Claim(msgspec.Struct, forbid_unknown_fields=True):
    """A claim in a few words, and the test or benchmark that holds it, or what it lacks.

    A test is `file::function`; of the page's own tests, which are in TypeScript, `file::title`.
    """

    claim: str
    held_by: str = ""
    needs: str = ""


def claims() -> dict[str, dict[str, Claim]]:
    """Claims by their ids, by paper."""
    return msgspec.json.decode(CLAIMS.read_bytes(), type=dict[str, dict[str, Claim]])


def page() -> str:
    """The whole page as Markdown."""
    papers = claims()
    rows = [claim for paper in papers.values() for claim in paper.values()]
    held = sum(bool(claim.held_by) for claim in rows)
    head = _HEAD.format(all=len(rows), held=held, open=len(rows) - held)
    return "\n".join([head, *(_section(name, list(paper.values())) for name, paper in papers.items())])


def _section(name: str, rows: list[Claim]) -> str:
    """A table with one row for each test, those that are not held last."""
    together: dict[str, list[str]] = {}
    for row in sorted(rows, key=lambda row: bool(row.needs)):
        together.setdefault(_link(row.held_by) or f"*needs {row.needs}*", []).append(row.claim)
    table = [f"| {'; '.join(texts)} | {holder} |" for holder, texts in together.items()]
    return "\n".join([f"## {_TITLES[name]}\n", "| claim | held by |", "|---|---|", *table, ""])


def _link(test: str) -> str:
    """The name of a test, or of a benchmark, that leads to its file."""
    file, _, name = test.partition("::")
    shown = f"{Path(file).name}::{name}" if name else file
    return f"[{shown}]({_HOME}/{file})" if file else ""


if __name__ == "__main__":
    print(page(), end="")
