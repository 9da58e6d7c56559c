"""Whether the steps of a script are slower at the head of a branch than at its base.

    python action/compare_steps.py --base FOLDER --head FOLDER [--limit 2] [--pairs 20] train.py --epochs 1

Both versions run in turns on one machine until the interval of their ratio decides: above the limit
the head is slower (exit code 1), below it is not. What no pair decides is neither: `cannot tell`.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from stepscope.facts.slow_steps import own_ms
from stepscope.models.diff.significance import ALIKE, CONFIDENCE, LEAST_PAIRS, Decision, decide
from stepscope.read.watched_run import read_watched_run

_WARMUP = 5  # steps that compile, tune and fill caches; as many as `stepscope run` leaves out
_NAMES = ("base", "head")
_SENTENCES = {
    "slower": "The step is slower",
    "not slower": "The step is not slower",
    "cannot tell": "Cannot tell whether the step is slower",
}


def step_ms(watched: Path) -> float:
    """The median of all steps of a run but the first, without evaluation and checkpoints."""
    steps = own_ms(read_watched_run(watched).steps)[_WARMUP:].tolist()
    if not steps:
        sys.exit(f"{watched} has no step after {_WARMUP} that warm up; let the script train for longer")
    return statistics.median(steps)


def stepscope(folder: Path, command: str, out: Path, script: list[str]) -> None:
    """Run the script in one version, as `stepscope run` or `stepscope watch` does."""
    out.unlink(missing_ok=True)  # that of an earlier run
    words = [sys.executable, "-m", "stepscope", command, "-o", str(out.resolve()), *script]
    subprocess.run(words, cwd=folder, check=True)


def compare(folders: tuple[Path, Path], out: Path, script: list[str], limit: float, most: int) -> int:
    """Watch pairs until they decide, and record both; the order alternates, as machines warm up."""
    pairs: list[tuple[float, float]] = []
    decision = Decision()
    while len(pairs) < most and decision.verdict == "cannot tell":
        times = {}
        for side in (0, 1) if len(pairs) % 2 == 0 else (1, 0):
            watched = out / f"{_NAMES[side]}.watch"
            stepscope(folders[side], "watch", watched, script)
            times[side] = step_ms(watched)
        pairs.append((times[0], times[1]))
        decision = decide(pairs, limit, ALIKE)
    _write(out, decision, pairs, limit)
    for folder, name in zip(folders, _NAMES, strict=True):
        stepscope(folder, "run", out / f"{name}.stepscope", script)
    return int(decision.verdict == "slower")


def _write(out: Path, decision: Decision, pairs: list[tuple[float, float]], limit: float) -> None:
    (out / "comment.md").write_text(comment(decision, pairs, limit), "utf-8")
    summary = {"verdict": decision.verdict, "limit": limit, "base_ms": [], "head_ms": []}
    summary["base_ms"], summary["head_ms"] = map(list, zip(*pairs, strict=True))
    (out / "steps.json").write_text(json.dumps(summary), "utf-8")
    if output := os.environ.get("GITHUB_OUTPUT"):
        with Path(output).open("a") as file:
            file.write(f"verdict={decision.verdict}\n")


def comment(decision: Decision, pairs: list[tuple[float, float]], limit: float) -> str:
    """The verdict in Markdown, with a row for each version."""
    rows = [
        f"| {name} | {statistics.median(times):.2f} | {min(times):.2f} | {max(times):.2f} |"
        for name, times in zip(_NAMES, zip(*pairs, strict=True), strict=True)
    ]
    interval = f"{decision.least:+.1f} to {decision.most:+.1f} %, {CONFIDENCE * 100:.1f} % interval"
    known = f"{decision.change:+.1f} % ({interval})" if len(pairs) >= LEAST_PAIRS else "too few pairs"
    head = f"**{_SENTENCES[decision.verdict]}**: {known}, {len(pairs)} pairs, limit {limit:g} %."
    return "\n".join([head, "", "| step, ms | median | least | most |", "|---|---:|---:|---:|", *rows, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("stepscope-steps"))
    parser.add_argument("--limit", type=float, default=2.0, help="accepted change, percent")
    parser.add_argument("--pairs", type=int, default=20, help="most pairs of runs")
    parser.add_argument("script", nargs=argparse.REMAINDER, help="the script and its arguments")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    folders = (options.base, options.head)
    return compare(folders, options.out, options.script, options.limit, options.pairs)


if __name__ == "__main__":
    sys.exit(main())
