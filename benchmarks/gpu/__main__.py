"""Takes parts one after the other, each in a separate process, within a number of minutes.

A part whose file is complete is skipped; one that was cut short, or killed, goes on where it
stopped. The exit code is 0 where every part is complete, 1 where some are not, 2 where nothing
can be measured.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.gpu.parts import EVERY, PARTS
from benchmarks.gpu.places import ROOT, SITE

_REFUSED, _GO_ON = 2, 3
_PROCESSES = 12
_GRACE_S = 60  # for the measurement that runs when the time is over
_ENDINGS = {0: "complete", 1: "cut short"}


def run_part(name: str, options: list[str], seconds: float) -> int:
    """Take a part; where a measurement takes the process down, go on in a new one."""
    deadline = time.monotonic() + seconds
    code = 1
    for _ in range(_PROCESSES):
        left = deadline - time.monotonic()
        command = [sys.executable, "-m", "benchmarks.gpu.part", name, *options]
        code = in_process([*command, "--seconds", f"{left:.0f}"], left + _GRACE_S)
        died = code < 0  # by a signal
        if not (died or code == _GO_ON) or time.monotonic() > deadline:
            break
    return code


def in_process(command: list[str], timeout_s: float) -> int:
    """The code that a command ends with; whatever it has started ends with it.

    Its group is its own, but not its session: what ends all of this session ends it, too.
    """
    process = subprocess.Popen(command, cwd=ROOT, env=environment(), preexec_fn=os.setpgrp)
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return 1
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment() -> dict[str, str]:
    """Where this kit and stepscope are found, installed or not; the profiler's log is silenced."""
    path = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", ""), str(SITE)]
    quiet = {"KINETO_LOG_LEVEL": "99"}
    return {**quiet, **os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """What this program understands, and what it passes on to each part."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0])
    parser.add_argument("--list", action="store_true", help="show the parts")
    parser.add_argument("--part", action="append", choices=EVERY, help="only this one (repeatable)")
    parser.add_argument("--minutes", type=float, default=60, help="in all (60)")
    parser.add_argument("--out", type=Path, help="the folder of results (one for each device)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="tiny models, few steps: for tests")
    parser.add_argument("--retry", action="store_true", help="take failed measurements again")
    args = parser.parse_args()
    if args.device == "cpu" and not args.list and not args.out:
        parser.error("--device cpu needs --out: its results are no evidence")
    passed = ["--device", args.device, "--seed", str(args.seed)]
    passed += ["--out", str(args.out.absolute())] if args.out else []
    passed += [flag for flag in ("--quick", "--retry") if getattr(args, flag[2:])]
    return args, passed


def main() -> int:
    args, passed = arguments()
    if args.list:
        for name, part in PARTS.items():
            print(f"{name:12} {part.minutes:2} min  {part.about}")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # no part stays
    end = time.monotonic() + 60 * args.minutes
    codes = {}
    for name in args.part or PARTS:
        limit = 60 * EVERY[name].minutes if args.device == "cuda" else math.inf
        seconds = min(end - time.monotonic(), limit)
        codes[name] = run_part(name, passed, seconds) if seconds > 0 else 1
        if codes[name] == _REFUSED:
            return _REFUSED
    for name, code in codes.items():
        print(f"{name:12} {_ENDINGS.get(code, f'ended with code {code}')}")
    return 1 if any(codes.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
