"""Fuzzes every reader, guided by the lines that inputs reach: an hour with one command.

    python tests/fuzz/fuzz.py [--minutes 60] [--folder .fuzz] [TARGET…]
    python tests/fuzz/fuzz.py --each 60 --cores 2   # a minute of each target

The targets take turns. FOLDER keeps the inputs that reached new lines, those that broke a rule, and
the totals, so that a later run goes on. An input that takes over 10 s of CPU time is a hang; one
that takes the process over 2 GB is too large; both end the process, and the next one goes on.
Guided by lines and, from Python 3.12 on, by branches.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

from fuzz_worker import HEADER, STATE_BYTES
from targets import TARGETS

WORKER = Path(__file__).with_name("fuzz_worker.py")
HANG_S = 10
LOOK_S = 0.5
STUCK_S = 300  # of elapsed time: it waits for something
MOST_MB = 2048
_TICK = os.sysconf("SC_CLK_TCK")


def run_turn(name: str, folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """One target for some seconds; returns what happened."""
    for part in ("corpus", "findings"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    state = folder / "state"
    state.write_bytes(bytes(STATE_BYTES))
    begun = time.monotonic()
    worker = subprocess.Popen(
        [sys.executable, str(WORKER), name, str(folder), str(seconds), str(seed)],
        stdout=subprocess.PIPE,
        stderr=(folder / "stderr.txt").open("ab"),
    )
    end = watch(worker, state)
    output, _ = worker.communicate()
    found: dict[str, Any] = {"executions": HEADER.unpack(state.read_bytes()[: HEADER.size])[0]}
    if not end and worker.returncode == 0:
        found = json.loads(output.splitlines()[-1])
    else:
        keep_input(folder, state, end or f"died {worker.returncode}")
        found["ended"] = end or f"died {worker.returncode}"
    return found | {"seconds": time.monotonic() - begun}


def watch(worker: subprocess.Popen[bytes], state: Path) -> str:
    """Wait for a worker; returns why it had to be ended, if it had to."""
    before = b""
    same = 0  # looks at one input; counted, as both processes may be stopped for a while
    while worker.poll() is None:
        time.sleep(LOOK_S)
        try:
            header = state.read_bytes()[: HEADER.size]
            same = same + 1 if header == before else 0
            why = "stuck" if same * LOOK_S > STUCK_S else trouble(worker.pid, header)
        except (OSError, IndexError, ValueError):
            continue  # it is just ending
        before = header
        if why:
            worker.kill()
            return why
    return ""


def trouble(pid: int, header: bytes) -> str:
    """What is wrong with the input at work, if anything."""
    executions, cpu_ns, _ = HEADER.unpack(header)
    if not executions:
        return ""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
    if (int(fields[11]) + int(fields[12])) / _TICK - cpu_ns / 1e9 > HANG_S:
        return "hang"
    return "memory" if resident > MOST_MB << 20 else ""


def keep_input(folder: Path, state: Path, why: str) -> None:
    """Write the input that a worker was ended for."""
    content = state.read_bytes()
    length = HEADER.unpack(content[: HEADER.size])[2]
    data = content[HEADER.size : HEADER.size + length]
    name = f"{why.split()[0]}-{hashlib.sha1(data).hexdigest()[:12]}"
    (folder / "findings" / name).write_bytes(data)


def add(total: dict[str, Any], turn: dict[str, Any]) -> None:
    """Add a turn to a target's totals."""
    for key in ("executions", "seconds", "cpu_s"):
        total[key] = total.get(key, 0) + turn.get(key, 0)
    for key in ("slowest_s", "peak_mb", "reached", "lines"):
        total[key] = max(total.get(key, 0), turn.get(key, 0))
    for place, count in turn.get("broken", {}).items():
        total.setdefault("broken", {}).setdefault(place, 0)
        total["broken"][place] += count
    if why := turn.get("ended"):
        total.setdefault("ended", {}).setdefault(why, 0)
        total["ended"][why] += 1


def table(totals: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The totals in Markdown."""
    yield (
        "| target | minutes | executions | lines reached | exceptions | died | over 10 s | "
        "over 2 GB | slowest, CPU s | peak, MB |"
    )
    yield "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
    for name, one in totals.items():
        ended = one.get("ended", {})
        died = sum(count for why, count in ended.items() if why.startswith("died"))
        cells = (
            f"{one['seconds'] / 60:.1f}",
            f"{one['executions']:,}",
            f"{one['reached']:,} of {one['lines']:,}" if one["lines"] else "?",
            len(one.get("broken", {})),
            died,
            ended.get("hang", 0) + ended.get("stuck", 0),
            ended.get("memory", 0),
            f"{one['slowest_s']:.2f}",
            f"{one['peak_mb']:.0f}",
        )
        yield f"| {name} | " + " | ".join(map(str, cells)) + " |"


def take_turns(
    targets: list[str], options: argparse.Namespace, totals: dict[str, dict[str, Any]], lock: Lock
) -> None:
    """Give targets their turns until the time is spent; what happens is added to the totals."""
    seconds = options.each * len(targets) if options.each else 60 * options.minutes
    turn_s = options.each or min(options.turn, seconds / len(targets))
    spent, number = 0.0, 0
    while spent < seconds - 1:
        name = targets[number % len(targets)]
        while options.pause_while and options.pause_while.exists():
            time.sleep(1)
        turn = run_turn(name, options.folder / name.replace(" ", "_"), turn_s, time.time_ns())
        spent, number = spent + turn["seconds"], number + 1
        with lock:
            add(totals.setdefault(name, {}), turn)
            (options.folder / "totals.json").write_text(json.dumps(totals, indent=1))
        print(f"{name}: {json.dumps(turn)}", flush=True)


def main() -> None:
    """Give each target its turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--minutes", type=float, default=60, help="of each core")
    parser.add_argument("--each", type=float, help="seconds of each target, instead of --minutes")
    parser.add_argument("--turn", type=float, default=60, help="seconds of a turn")
    parser.add_argument("--cores", type=int, default=1, help="so many targets at a time")
    parser.add_argument("--folder", type=Path, default=Path(".fuzz"))
    parser.add_argument("--pause-while", type=Path, help="wait between turns while this exists")
    options = parser.parse_args()
    totals_file = options.folder / "totals.json"
    totals = json.loads(totals_file.read_text()) if totals_file.exists() else {}
    lock, parts = Lock(), [options.targets[first :: options.cores] for first in range(options.cores)]
    with ThreadPoolExecutor(options.cores) as pool:
        list(pool.map(lambda part: take_turns(part, options, totals, lock), filter(None, parts)))
    print("\n".join(table(totals)))


if __name__ == "__main__":
    main()
