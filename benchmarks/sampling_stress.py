"""Whether sampling ever crashes or hangs the program that it watches, and whether it is right.

python benchmarks/sampling_stress.py [--minutes 60] [--seconds 8] [--output FILE] [--python FILE]…

Runs `sampling_stress_entry.py` again and again under `run --contexts`, at 100 to 10,000 samples per
second of CPU time and of elapsed time, with and without --native. Reports crashes, hangs, and how
far the sampled share of each kind of work is from its measured share. With several --python the
interpreters take turns; each needs torch, click, rich and platformdirs, and stepscope on its path.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ENTRY = Path(__file__).with_name("sampling_stress_entry.py")
KINDS = ("recurse", "generate", "throw", "compile_new", "compute")
RATES = ((100, 0), (0, 100), (1000, 0), (0, 1000), (5000, 2000), (10000, 0), (0, 10000), (10000, 10000))


@dataclass
class Outcome:
    """One run.

    Attributes:
        python: the interpreter that ran.
        returncode: of the process; None where it did not end in time.
        errors: by clock the greatest difference between a sampled and a measured share.
        samples: how many were taken.
        dropped: how many were put off, as the stack changed while it was read.
    """

    python: str
    cpu_hz: int
    real_hz: int
    native: bool
    returncode: int | None
    errors: dict[str, float]
    samples: int = 0
    dropped: int = 0
    stderr: str = ""


def run_once(python: str, cpu_hz: int, real_hz: int, native: bool, seconds: float, folder: Path) -> Outcome:
    """One run, and its shares against the truth."""
    capture, truth = folder / "run.stepscope", folder / "truth.json"
    for path in (capture, truth):
        path.unlink(missing_ok=True)
    command = [
        python,
        "-X",
        "faulthandler",
        "-m",
        "stepscope",
        "run",
        "--contexts",
        "--sample",
        str(cpu_hz),
        "--sample-real",
        str(real_hz),
        *(["--native"] if native else []),
        "-o",
        str(capture),
        str(ENTRY),
        str(seconds),
        str(truth),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60 + 20 * seconds, check=False)
    except subprocess.TimeoutExpired:
        return Outcome(python, cpu_hz, real_hz, native, None, {})
    outcome = Outcome(python, cpu_hz, real_hz, native, done.returncode, {})
    outcome.stderr = done.stderr[-2000:]
    if not done.returncode:
        compare(outcome, capture, json.loads(truth.read_text()))
    return outcome


def use_sanitizers() -> None:
    """Have the collector built and run with the compiler's checks of memory and arithmetic."""
    libraries = [
        subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    os.environ |= {
        "STEPSCOPE_BUILD_FLAGS": "-g -fsanitize=address,undefined -fno-sanitize-recover=all",
        "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0",
        "PYTHONMALLOC": "malloc",
    }


def build_collector(python: str) -> None:
    """Build the collector of an interpreter, so that no run has to wait for it."""
    module = "stepscope.record.contexts.native_build"
    code = f"import importlib, torch; importlib.import_module({module!r}).load(torch)"
    subprocess.run([python, "-c", code], check=True)


def compare(outcome: Outcome, capture: Path, truth: dict[str, dict[str, float]]) -> None:
    """Fill in the errors of a run's shares."""
    content = json.loads(zipfile.ZipFile(capture).read("contexts.json"))
    outcome.dropped = content["dropped"]["samples"]
    for clock, rate in (("cpu", outcome.cpu_hz), ("real", outcome.real_hz)):
        if rate:
            found, samples = sampled_shares(content, f"sampled_{clock}_ns")
            total = sum(truth[clock].values())
            errors = {kind: found[kind] - truth[clock][kind] / total for kind in KINDS}
            outcome.errors |= {f"{clock} {kind}": error for kind, error in errors.items()}
            outcome.samples += samples


def sampled_shares(content: dict, metric: str) -> tuple[dict[str, float], int]:
    """The share of each kind of work in a metric, and the number of samples in them."""
    nodes, strings = content["nodes"], content["strings"]
    kinds: list[str | None] = []
    for parent, name, file in zip(nodes["parent"], nodes["name"], nodes["file"], strict=True):
        own = strings[name] if strings[name] in KINDS and strings[file] == str(ENTRY) else None
        kinds.append((kinds[parent] if parent >= 0 else None) or own)
    sums = dict.fromkeys(KINDS, 0)
    rows = content["metrics"].get(metric, {"node": [], "sum": [], "count": []})
    count = 0
    for node, value, samples in zip(rows["node"], rows["sum"], rows["count"], strict=True):
        # the short threads compute, too, but not in take_turns
        if kinds[node] and in_turns(nodes, strings, node):
            sums[kinds[node]] += value
            count += samples
    total = sum(sums.values()) or 1
    return {kind: value / total for kind, value in sums.items()}, count


def in_turns(nodes: dict, strings: list[str], node: int) -> bool:
    """Whether a node is below `take_turns`, whose work is measured."""
    while node > 0:
        if strings[nodes["name"][node]] == "take_turns":
            return True
        node = nodes["parent"][node]
    return False


def settings(pythons: list[str]) -> Iterator[tuple[str, int, int, bool]]:
    """All settings, over and over; each next run is another interpreter's."""
    product = itertools.product((False, True), RATES, pythons)
    for native, (cpu_hz, real_hz), python in itertools.cycle(product):
        yield python, cpu_hz, real_hz, native


def main() -> None:
    """Run, and report."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--python", action="append", help="an interpreter; may be given again")
    parser.add_argument("--pause-while", type=Path, help="wait between runs while this exists")
    parser.add_argument("--sanitize", action="store_true", help="with -fsanitize (needs GCC)")
    options = parser.parse_args()
    if options.sanitize:
        use_sanitizers()
    pythons = options.python or [sys.executable]
    for python in pythons:
        build_collector(python)
    until = time.monotonic() + 60 * options.minutes
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory() as folder:
        for setting in settings(pythons):
            while options.pause_while and options.pause_while.exists():
                time.sleep(1)
            if time.monotonic() > until:
                break
            outcomes.append(run_once(*setting, options.seconds, Path(folder)))
            print(describe(outcomes[-1]), flush=True)
            if options.output:
                rows = [asdict(outcome) for outcome in outcomes]
                options.output.write_text(json.dumps(rows, indent=1))
    print(summarize(outcomes))


def describe(outcome: Outcome) -> str:
    """A line for one run."""
    worst = max(outcome.errors.items(), key=lambda item: abs(item[1]), default=("", 0.0))
    return (
        f"{outcome.python}: cpu {outcome.cpu_hz:>5}/s, elapsed {outcome.real_hz:>5}/s, "
        f"native {outcome.native:d}: "
        f"exit {outcome.returncode}, {outcome.samples} samples, {outcome.dropped} put off, "
        f"largest error {100 * worst[1]:+.1f} points ({worst[0]})"
        + (f"\n{outcome.stderr}" if outcome.returncode else "")
    )


def summarize(outcomes: list[Outcome]) -> str:
    """The totals."""
    lines = []
    for python in sorted({outcome.python for outcome in outcomes}):
        own = [outcome for outcome in outcomes if outcome.python == python]
        hangs = sum(outcome.returncode is None for outcome in own)
        crashes = sum(bool(outcome.returncode) for outcome in own)
        lines.append(
            f"{python}: {len(own)} runs, {crashes} crashed, {hangs} hung, "
            f"{sum(outcome.samples for outcome in own):,} samples, "
            f"largest mean error {100 * _largest_mean(own):.2f} points"
        )
    for cpu_hz, real_hz in RATES:
        group = [o for o in outcomes if (o.cpu_hz, o.real_hz) == (cpu_hz, real_hz) and o.errors]
        for key in sorted({key for outcome in group for key in outcome.errors}):
            errors = [outcome.errors[key] for outcome in group]
            mean, worst = sum(errors) / len(errors), max(errors, key=abs)
            lines.append(
                f"cpu {cpu_hz}/s, elapsed {real_hz}/s, {key}: mean {100 * mean:+.2f}, "
                f"worst {100 * worst:+.2f} points in {len(errors)} runs"
            )
    return "\n".join(lines)


def _largest_mean(outcomes: list[Outcome]) -> float:
    """The largest error of a share, averaged over the runs."""
    keys = {key for outcome in outcomes for key in outcome.errors}
    by_key = ([o.errors[key] for o in outcomes if key in o.errors] for key in keys)
    return max((abs(sum(errors)) / len(errors) for errors in by_key), default=0.0)


if __name__ == "__main__":
    main()
