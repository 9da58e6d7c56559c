"""The gain of the analyzer's advice: each script of `examples/slow` with and without its defect.

    python benchmarks/slow_examples.py --rounds 7

The two take turns within each round, each in a separate forked process, so that a busy machine
slows both alike; torch is imported once. Ratios are medians of the ratios within a round.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import runpy
import socket
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median

from forked_process import finish, start

FOLDER = Path(__file__).parents[1] / "examples" / "slow"
ON_A_GPU = ("pageable_copies", "fp32_matmul", "odd_shapes", "stall_reasons")
ON_TWO_RANKS = {path.stem for path in FOLDER.glob("*.py") if "init_process_group" in path.read_text()}
STEPS = {"recompilation": 12, "allocator_churn": 12, "too_many_workers": 48}
# What counts is the whole run: the start of the workers, the steps that do communicate.
IN_ALL = ("too_many_workers", "exposed_communication")
SAMPLES = {"small_batch": (1, 1024)}  # in a step, without the defect more
_SAID = re.compile(r"([\d.]+) ms a step, ([\d.]+) s in all")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="scripts; by default all that a CPU can show")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path, help="all times as JSON")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    import_module("torch._dynamo")  # so that no child has to
    scripts = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "common")
    names = args.names or [name for name in scripts if name not in ON_A_GPU]
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    for _ in range(args.rounds):
        for name in names:
            steps = min(args.steps, STEPS.get(name, args.steps))
            slow, fixed = (_measure(name, fixed, steps) for fixed in (False, True))
            times[name].append((slow, fixed))
    _print(times)
    if args.out:
        args.out.write_text(json.dumps({"load": os.getloadavg(), "times": times}, indent=1))


def _print(times: dict[str, list[tuple[float, float]]]) -> None:
    print(f"load average {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    print("| script | defect, ms | fixed, ms | faster | least to most |\n|---|---|---|---|---|")
    for name, rounds in times.items():
        slow, fixed = (median(one[side] for one in rounds) for side in (0, 1))
        ratios = sorted(one[0] / one[1] for one in rounds)
        spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
        print(f"| {name} | {slow:.3g} | {fixed:.3g} | {median(ratios):.2f}x | {spread} |")


def _measure(name: str, fixed: bool, steps: int) -> float:
    """Time of a step, ms: of a sample where the two differ in that."""
    arguments = ["--steps", str(steps), *(["--fixed"] if fixed else [])]
    ranks = 2 if name in ON_TWO_RANKS else 1
    port = _free_port()
    children = [start(partial(_run, name, arguments, rank, ranks, port)) for rank in range(ranks)]
    step_ms, all_s = max(_times(finish(*child)) for child in children)
    if name in IN_ALL:
        return 1000 * all_s / steps
    return step_ms / SAMPLES.get(name, (1, 1))[fixed]


def _run(name: str, arguments: list[str], rank: int, ranks: int, port: int) -> None:
    os.environ |= {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    sys.argv = [f"{name}.py", *arguments]
    sys.path.insert(0, str(FOLDER))
    runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")


def _times(text: str) -> tuple[float, float]:
    """What a script prints at its end: ms a step, and s in all."""
    found = _SAID.search(text)
    if not found:
        raise SystemExit(f"expected the script to print its times, found: {text}")
    return float(found[1]), float(found[2])


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


if __name__ == "__main__":
    main()
