"""Follow the analyzer's advice in a copy of each script, and compare what it saves with its range.

    python benchmarks/advice.py --rounds 5

Each script of `advice_cases.py` has one defect. It is recorded and analyzed; then it runs without
and with the fix, unrecorded, in two forked processes that take turns after each step, so that a
busy machine slows both alike. The fix is the finding's own patch where it has one. Gains are shares
of the step, the median of the rounds. Times are CPU times, medians over the steps, which other
programs change little; where a step waits, they are elapsed times, and means, of one run after the
other, as a loader's workers run ahead.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import Semaphore
from multiprocessing.synchronize import Semaphore as Turn
from pathlib import Path
from statistics import mean, median

from advice_cases import CASES, OWN_PATCH, Case
from forked_process import finish, start

import stepscope
from stepscope.analyze import RULES, Finding, RuleContext, apply_rules

WARMUP, RECORDED, TIMED = 2, 6, 30
LONGEST_S = 60  # of a step
TRIES = 8  # of a recording: on a busy machine a finding states another range
TOLERANCE = 0.03  # of the step: what two equal runs differ by

Turns = tuple[Turn, Turn]


@dataclass(frozen=True)
class Result:
    """What a case showed.

    Attributes:
        case: the case.
        finding: of its rule, None if there was none.
        gains: what the fix saved in each round, as a share of the step.
        step_ms: the step with the defect, unrecorded.
    """

    case: Case
    finding: Finding | None
    gains: list[float]
    step_ms: float

    @property
    def gain(self) -> float:
        """The median of the rounds."""
        return median(self.gains) if self.gains else 0.0

    @property
    def stated(self) -> tuple[float, float]:
        """The range that the finding states, as shares of the step."""
        if self.finding is None:
            return 0.0, 0.0
        low, high = (ms / self.finding.steady_ms for ms in self.finding.gain.stated_ms)
        return low, min(high, 1.0)

    @property
    def holds(self) -> bool:
        """Whether the fix saves something, and no more than the finding states."""
        if self.finding is None or not self.gains:
            return False
        low, high = self.stated
        return self.gain > 0 and low - TOLERANCE <= self.gain <= high + TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="cases; by default all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="the tables, as Markdown")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    for module in ("torch._dynamo", "torch.profiler", "stepscope.record.recorder"):
        import_module(module)  # so that no child has to
    with tempfile.TemporaryDirectory() as folder:
        chosen = [case for case in CASES if not args.names or case.name in args.names]
        results = [_show(_result(case, Path(folder), args.rounds)) for case in chosen]
    text = tables(results)
    print(text)
    if args.out:
        args.out.write_text(text + "\n", "utf-8")


def tables(results: list[Result]) -> str:
    """How many hold, by rule; the last two columns are medians, as shares of the step."""
    by_rule: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        by_rule[one.case.rule].append(one)
    rows = [
        f"| `{rule}` | {len(of)} | {sum(one.finding is not None for one in of)} | "
        f"{sum(one.holds for one in of)} | {median(one.stated[1] for one in of):.0%} | "
        f"{median(one.gain for one in of):.0%} |"
        for rule, of in [*sorted(by_rule.items()), ("all", results)]
    ]
    head = (
        "| rule | scripts | found | gain within its range | at most, by the finding | saved |\n"
        "|---|---|---|---|---|---|"
    )
    return "\n".join([head, *rows]).replace("`all`", "all")


def _show(result: Result) -> Result:
    low, high = result.stated
    rounds = ", ".join(f"{one:.0%}" for one in result.gains)
    print(
        f"{result.case.name:20} {'ok' if result.holds else 'NO':2} step {result.step_ms:.3g} ms, "
        f"stated {low:.0%} to {high:.0%}, saved {result.gain:.0%} ({rounds})",
        flush=True,
    )
    return result


def _result(case: Case, folder: Path, rounds: int) -> Result:
    script = folder / f"{case.name.replace('-', '_')}.py"
    script.write_text(case.script, "utf-8")
    finding = _finding(case, script, folder / f"{case.name}.stepscope")
    fixed = _fixed(case, finding)
    if fixed is None:
        return Result(case, finding, [], 0.0)
    copy = folder / f"{script.stem}_fixed.py"
    copy.write_text(fixed, "utf-8")
    pairs = [_step_times(script, copy, case) for _ in range(rounds)]
    before, after = case.samples
    gains = [1 - fast / slow * before / after for slow, fast in pairs]
    return Result(case, finding, gains, median(slow for slow, _ in pairs))


def _finding(case: Case, script: Path, capture: Path) -> Finding | None:
    """What the analyzer finds; recorded again where the script had to wait for a core."""
    finding: Finding | None = None
    for _ in range(TRIES):
        capture.unlink(missing_ok=True)
        _record(script, capture)
        found = apply_rules(RuleContext(stepscope.open(capture)), RULES)
        finding = next((one for one in found if one.rule == case.rule), None)
        if finding is None or finding.certain == 1.0:
            break
    return finding


def _fixed(case: Case, finding: Finding | None) -> str | None:
    """The script without its defect; None if the advice has no patch and needs one."""
    if case.after != OWN_PATCH:
        assert case.script.count(case.before) == 1, case.name
        return case.script.replace(case.before, case.after)
    if finding is None or finding.patch is None:
        return None
    return case.script.replace(finding.patch.before, finding.patch.after)


def _record(script: Path, capture: Path) -> None:
    def record() -> None:
        sys.argv = [
            "stepscope",
            "run",
            "--warmup",
            str(WARMUP),
            "--steps",
            str(RECORDED),
            "-o",
            str(capture),
            str(script),
            str(WARMUP + RECORDED + TIMED),
        ]
        import_module("stepscope.faces.terminal").main()

    finish(*start(record))


def _step_times(script: Path, copy: Path, case: Case) -> tuple[float, float]:
    """The time of a step of each, ms; the first steps do not count."""
    if case.waits:
        return mean(_times(*_run(script))), mean(_times(*_run(copy)))
    turns = Semaphore(1), Semaphore(0)
    runs = [_run(script, turns), _run(copy, turns[::-1])]
    slow, fast = (median(_times(*run)) for run in runs)
    return slow, fast


def _run(script: Path, turns: Turns | None = None) -> tuple[int, int]:
    """Start the script, which takes turns with another: its own turn, and the other's."""

    def next_step() -> None:
        if turns:
            turns[1].release()
            turns[0].acquire(timeout=LONGEST_S)

    def run() -> None:
        if turns:
            turns[0].acquire(timeout=LONGEST_S)
        sys.argv = [str(script), str(WARMUP + TIMED)]
        names = {"__name__": "__main__", "next_step": next_step}
        exec(compile(script.read_text("utf-8"), str(script), "exec"), names)
        if turns:
            turns[1].release()

    return start(run)


def _times(child: int, reading: int) -> list[float]:
    times: list[float] = json.loads(finish(child, reading).splitlines()[-1])
    return times[WARMUP:]


if __name__ == "__main__":
    main()
