"""From a trace file to annotated tables: stepscope, HTA, plain `json.load` and simdjson.

    python benchmarks/ingest.py [--rounds 3] [--cores N] [--tools NAME…] [--files FILE…] [--huge]
                                [--out results.json]

Every reading is a separate process (`read_once.py`); within a round each file is read by every
tool in turn, beginning with another one each round, so that a busy machine slows all alike. Of each
it takes the time and the CPU time from file to tables (without starting Python and importing), the
time and the CPU time of the whole process, and its peak memory. Ratios are medians of the ratios
within a round.

HTA is measured twice: its load alone, whose frame has steps, launches and backward links, and with
its call graph, which adds the nesting that stepscope's tables have too. The bar is for the first.
simdjson only parses.

Without --files it takes the real traces over 20 MB of ../shared/traces (or $STEPSCOPE_TRACES), and
a generated one of a million slices. HTA is installed into .venvs/hta unless --hta-python names an
interpreter that has it. --quick is for tests: small files, one round, HTA only where it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import venv
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from big_trace import write_trace
from process import Cost, run

ROOT = Path(__file__).parents[1]
READ_ONCE = Path(__file__).with_name("read_once.py")
TRACES = Path(os.environ.get("STEPSCOPE_TRACES") or ROOT.parent / "shared" / "traces")
# HTA 0.5 fails on pandas 3 for some traces.
HTA = ("HolisticTraceAnalysis==0.5.0", "pandas==2.3.3", "pysimdjson==7.0.2")
REAL = (
    "kineto_resnet50_v100/num_workers_0.json.gz",
    "kineto_resnet50_v100/num_workers_4.json.gz",
    "diff_a100_v100/a100_rank3of8.json.gz",
    "diff_a100_v100/v100_rank1of2.json.gz",
    "resnet_2080ti_with_et/kineto.json.gz",
    "edge_cases/a100_rank0of16.json.gz",
    "cuda_graph_vllm/graph_capture.json.gz",
    "mtia_training/rank0.json.gz",
)
DECOMPRESSED = ("diff_a100_v100/a100_rank3of8.json.gz", "mtia_training/rank0.json.gz")
QUICK = ("critical_path_a100/simple_add.json.gz",)
MILLION, HUGE, SMALL = 1_000_000, 3_600_000, 10_000
TIMEOUT_S = 900


@dataclass
class Reading:
    """One process that read one file."""

    cost: Cost
    read_s: float = 0.0
    read_cpu_s: float = 0.0
    rows: int = 0
    error: str = ""


# -- what is measured


def read(tool: str, python: str, file: Path) -> Reading:
    cost = run([python, str(READ_ONCE), tool, str(file)], TIMEOUT_S)
    try:
        facts = json.loads(cost.output.splitlines()[-1])
    except (IndexError, ValueError):
        return Reading(cost, error=f"ended with {cost.status}")
    return Reading(cost, **facts)


def compare(file: Path, tools: dict[str, str], rounds: int) -> dict[str, list[Reading]]:
    """Every tool's readings of a file; one that failed is not asked again."""
    readings: dict[str, list[Reading]] = {tool: [] for tool in tools}
    for turn in range(rounds):
        first = turn % len(tools)
        for tool in [*tools][first:] + [*tools][:first]:
            if not any(reading.error for reading in readings[tool]):
                readings[tool].append(read(tool, tools[tool], file))
    return readings


def commands(file: Path, rounds: int) -> dict[str, list[Cost]]:
    """Whole processes: what a person waits for at a prompt; the file is in the cache."""
    stepscope = str(Path(sys.executable).with_name("stepscope"))
    commands_by_name = {
        "import stepscope": [sys.executable, "-c", "import stepscope"],
        "stepscope --help": [stepscope, "--help"],
        "reopen": [sys.executable, "-c", f"import stepscope; stepscope.open({str(file)!r})"],
        "report": [stepscope, "report", str(file)],
    }
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "STEPSCOPE_CACHE": cache}
        run(commands_by_name["reopen"], TIMEOUT_S, environment)
        costs: dict[str, list[Cost]] = {name: [] for name in commands_by_name}
        for _ in range(rounds):
            for name, command in commands_by_name.items():
                costs[name].append(run(command, TIMEOUT_S, environment))
    return costs


# -- what it is measured on


def files_of(args: argparse.Namespace, folder: Path) -> list[Path]:
    if args.files:
        return list(args.files)
    generated = write_trace(folder / "generated.json", SMALL if args.quick else MILLION)
    real = [TRACES / name for name in (QUICK if args.quick else REAL)]
    found = [file for file in real if file.exists()]
    for file in sorted({*real} - {*found}):
        print(f"left out, not there: {file}", file=sys.stderr)
    plain = [] if args.quick else [TRACES / name for name in DECOMPRESSED]
    return [*found, *(decompressed(file, folder) for file in plain if file in found), generated]


def decompressed(file: Path, folder: Path) -> Path:
    target = folder / f"{file.parent.name}_{file.stem}"
    with gzip.open(file) as source, target.open("wb") as sink:
        shutil.copyfileobj(source, sink)
    return target


def hta_python(args: argparse.Namespace) -> str | None:
    """An interpreter that has HTA; None where there is none and none is to be made."""
    if args.hta_python:
        return str(args.hta_python)
    folder = ROOT / ".venvs" / "hta"
    python = folder / "bin" / "python"
    if not args.quick and not has_hta(python):
        print(f"making {folder} (once)", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *HTA], check=True)
    return str(python) if has_hta(python) else None


def has_hta(python: Path) -> bool:
    return python.exists() and not subprocess.run([python, "-c", "import hta, simdjson"]).returncode


# -- what it says


def summary(readings: dict[str, list[Reading]]) -> dict[str, dict[str, Any]]:
    """Medians by tool, and each tool's median ratio to stepscope within rounds."""
    mine = readings["stepscope"]
    return {tool: _of_tool(theirs, mine) for tool, theirs in readings.items()}


def _of_tool(theirs: list[Reading], mine: list[Reading]) -> dict[str, Any]:
    if failed := next((one.error for one in theirs if one.error), ""):
        return {"error": failed}
    pairs = list(zip(theirs, mine, strict=True))
    return {
        "read_s": statistics.median(one.read_s for one in theirs),
        "read_cpu_s": statistics.median(one.read_cpu_s for one in theirs),
        "wall_s": statistics.median(one.cost.wall_s for one in theirs),
        "cpu_s": statistics.median(one.cost.cpu_s for one in theirs),
        "peak_bytes": statistics.median(one.cost.peak_bytes for one in theirs),
        "rows": theirs[0].rows,
        "times_slower": statistics.median(a.read_s / b.read_s for a, b in pairs),
        "times_cpu": statistics.median(a.read_cpu_s / b.read_cpu_s for a, b in pairs),
        "times_memory": statistics.median(a.cost.peak_bytes / b.cost.peak_bytes for a, b in pairs),
    }


def show(label: str, size: int, table: dict[str, dict[str, Any]]) -> None:
    print(f"\n{label}, {size / 1e6:.1f} MB, load average {os.getloadavg()[0]:.1f}")
    print(
        f"  {'':12}{'to tables':>10}{'its CPU':>9}{'process':>9}{'CPU':>9}{'peak MB':>9}   against stepscope"
    )
    for tool, row in table.items():
        if "error" in row:
            print(f"  {tool:12}fails: {row['error']}")
            continue
        print(
            f"  {tool:12}{row['read_s']:9.2f}s{row['read_cpu_s']:8.2f}s{row['wall_s']:8.2f}s"
            f"{row['cpu_s']:8.2f}s{row['peak_bytes'] / 1e6:9.0f}   "
            f"{row['times_slower']:.1f}x time, "
            f"{row['times_cpu']:.1f}x CPU, "
            f"{row['times_memory']:.1f}x memory",
            flush=True,
        )


def show_commands(label: str, costs: dict[str, list[Cost]]) -> None:
    print(f"\nwhole processes, {label} in the cache, load average {os.getloadavg()[0]:.1f}")
    for name, measured in costs.items():
        wall = statistics.median(cost.wall_s for cost in measured)
        cpu = statistics.median(cost.cpu_s for cost in measured)
        failed = "   fails" if any(cost.status for cost in measured) else ""
        print(f"  {name:18}{wall:8.2f}s{cpu:8.2f}s CPU{failed}", flush=True)


def versions(python: str, *packages: str) -> dict[str, str]:
    code = f"from importlib.metadata import version as v; print(*map(v, {packages!r}))"
    found = subprocess.run([python, "-c", code], capture_output=True, text=True).stdout.split()
    return dict(zip(packages, found, strict=False))


def about(hta: str | None) -> dict[str, Any]:
    return {
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
        "python": platform.python_version(),
        "load_average": os.getloadavg(),
        "stepscope": versions(sys.executable, "stepscope", "numpy", "pyarrow", "msgspec"),
        "hta": versions(hta, "HolisticTraceAnalysis", "pandas", "numpy") if hta else {},
    }


# -- the command


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--hta-python", help="an interpreter that has HTA and pysimdjson")
    parser.add_argument("--tools", nargs="+", help="only these; stepscope is always one")
    parser.add_argument("--cores", type=int, help="how many processors a reading may use")
    parser.add_argument("--huge", action="store_true", help="only peak memory on about 1 GB")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def measure(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    if args.huge:
        tools, rounds = {"stepscope": sys.executable}, 1
        files = [write_trace(folder / "huge.json", HUGE)]
    else:
        hta = hta_python(args)
        tools = dict.fromkeys(("stepscope", "json"), sys.executable)
        tools |= dict.fromkeys(("simdjson", "hta", "hta_stacks"), hta) if hta else {}
        wanted = {"stepscope", *(args.tools or tools)}
        tools = {tool: python for tool, python in tools.items() if tool in wanted}
        rounds, files = 1 if args.quick else args.rounds, files_of(args, folder)
    results: dict[str, Any] = {"about": about(tools.get("hta")), "files": {}}
    print(json.dumps(results["about"], indent=1))
    for file in files:
        readings = compare(file, tools, rounds)
        label = str(file.relative_to(TRACES)) if file.is_relative_to(TRACES) else file.name
        show(label, file.stat().st_size, table := summary(readings))
        rows = {tool: [asdict(one) for one in ones] for tool, ones in readings.items()}
        size = file.stat().st_size
        results["files"][label] = {"bytes": size, "summary": table, "readings": rows}
    if not args.huge:
        costs = commands(files[-1], rounds)
        show_commands(files[-1].name, costs)
        results["commands"] = {name: [asdict(one) for one in ones] for name, ones in costs.items()}
    return results


def main() -> None:
    args = arguments()
    if args.cores:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    with tempfile.TemporaryDirectory() as folder:
        results = measure(args, Path(folder))
    if args.out:
        args.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
