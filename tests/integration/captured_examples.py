"""Captures of the scripts in `examples/slow`, made by one process: torch is imported once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "examples" / "slow"
ON_TWO_RANKS = {"exposed_communication", "straggling_rank"}
_SERVER = """
import json, os, socket, sys
import stepscope.capture.recorder, torch._dynamo, torch.profiler  # else each child would
from stepscope.cli import main

def run(arguments, rank, ranks, port):
    child = os.fork()
    if child:
        return child
    if ranks > 1:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(ranks), "GLOO_SOCKET_IFNAME": "lo",
                       "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    sys.argv = ["stepscope", "run", *arguments]
    main()

def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]

for arguments, ranks in json.load(sys.stdin):
    port = free_port() if ranks > 1 else 0
    for child in [run(arguments, rank, ranks, port) for rank in range(ranks)]:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            sys.exit(f"{arguments} ended with {status}")
"""
# A loader that runs ahead is caught waiting in a longer row of steps only.
_STEPS = {"too_many_workers": (24, 16)}
_OPTIONS = {"allocator_churn": ["--memory"]}


def capture_all(rules: list[str], folder: Path) -> None:
    """`stepscope run` of each rule's script with its defect (RULE.stepscope) and without.

    Of a script for two ranks, a folder of their captures (RULE).
    """
    jobs = [_job(rule, fixed, folder) for rule in rules for fixed in (False, True)]
    done = subprocess.run(
        [sys.executable, "-c", _SERVER],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=1500,  # one rank would wait for a dead one for half an hour
    )
    assert done.returncode == 0, done.stderr


def _job(rule: str, fixed: bool, folder: Path) -> tuple[list[str], int]:
    """The arguments, and how many ranks."""
    return _arguments(rule, fixed, folder), 2 if rule in ON_TWO_RANKS else 1


def _arguments(rule: str, fixed: bool, folder: Path) -> list[str]:
    steps, recorded = _STEPS.get(rule, (7, 5))
    return [
        *_OPTIONS.get(rule, []),
        *("--warmup", "2", "--steps", str(recorded)),
        *("-o", str(folder / f"{rule}{'-fixed' if fixed else ''}.stepscope")),
        *(str(FOLDER / f"{rule}.py"), "--steps", str(steps)),
        *(["--fixed"] if fixed else []),
    ]
