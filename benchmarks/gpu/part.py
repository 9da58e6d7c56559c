"""Takes the measurements of one part, in a separate process.

python -m benchmarks.gpu.part NAME --device D --seconds S [--quick] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from importlib import import_module
from pathlib import Path

import torch
from benchmarks.gpu.machine import machine_facts
from benchmarks.gpu.parts import EVERY, Json
from benchmarks.gpu.results import MEASURED, OtherRun, Results
from benchmarks.gpu.setting import Setting, Unavailable, default_out, no_gpu_reason
from benchmarks.gpu.timing import release

REFUSED, INCOMPLETE, GO_ON = 2, 1, 3
# Libraries that PyTorch calls say it in words of their own.
_NO_MEMORY = ("out of memory", "ALLOC_FAILED", "unable to find an engine")


def take(name: str, setting: Setting, results: Results, seconds: float) -> None:
    """Take every measurement of a part that is not there yet, until the time is over."""
    deadline = time.monotonic() + seconds
    part = import_module(f"benchmarks.gpu.parts.{name}")
    for key, measure in part.measurements(setting, results.measurements):
        if key in results.measurements:
            continue
        if time.monotonic() > deadline:
            results.put_off(key)
        elif results.begin(key):
            found = outcome(measure, setting.device)
            results.add(key, found)
            say(name, key, found)
            spoils = "CUDA graph" in key or found["outcome"] == "failed"  # all that follows in a process
            if setting.on_gpu and (EVERY[name].apart or spoils):
                sys.exit(GO_ON)
    results.end()


def outcome(measure: Callable[[], Json], device: str) -> Json:
    """What a measurement found, or why it found nothing."""
    release(device)
    begin = time.perf_counter()
    try:
        found = {"outcome": MEASURED, **measure()}
    except Exception as error:  # whatever it is, it is a result too, and others follow
        found = {"outcome": kind_of(error), "error": f"{type(error).__name__}: {str(error)[:600]}"}
    return {**found, "took_s": time.perf_counter() - begin}


def kind_of(error: Exception) -> str:
    """Why there is no measurement, in a word."""
    if isinstance(error, Unavailable):
        return "unavailable"
    if isinstance(error, torch.OutOfMemoryError) or any(s in str(error) for s in _NO_MEMORY):
        return "out of memory"
    return "failed"


def say(part: str, key: str, found: Json) -> None:
    """One line for each measurement."""
    step = f"{found['step_ms']['median']:.2f} ms" if "step_ms" in found else ""
    told = found.get("error", "").partition("\n")[0][:80] or step
    print(f"{part:12} {key:28} {found['outcome']:14} {told}", flush=True)


def open_results(name: str, setting: Setting) -> Results:
    """The part's file, with what it says beside its measurements."""
    machine = machine_facts(setting.device)
    about = {
        "part": name,
        "about": EVERY[name].about,
        "device": machine["device"]["name"],
        "quick": setting.quick,
        "seed": setting.seed,
    }
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")
    run = {"begun": begun, "command": sys.argv[1:], "machine": machine}
    return Results(setting.out / f"{name}.json", about, run)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=EVERY)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--retry", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> int:
    args = arguments()
    if args.device == "cuda" and (reason := no_gpu_reason()):
        print(f"benchmarks.gpu: {reason}; --device cpu --quick tries the kit", file=sys.stderr)
        return REFUSED
    out = args.out or default_out(args.device)
    setting = Setting(args.device, args.quick, out.absolute(), args.seed)
    try:
        results = open_results(args.name, setting)
    except OtherRun as error:
        print(f"benchmarks.gpu: {error}", file=sys.stderr)
        return REFUSED
    if args.retry:
        results.forget_failures()
    take(args.name, setting, results, args.seconds)
    late = len(results.not_measured)
    print(f"{args.name:12} {len(results.measurements)} done, {late} put off", flush=True)
    return 0 if results.complete else INCOMPLETE


if __name__ == "__main__":
    sys.exit(main())
