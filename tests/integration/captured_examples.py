"""Captures of the scripts in `examples/slow`, made by one process: torch is imported once."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from warm_python import WarmRun

FOLDER = Path(__file__).parents[2] / "examples" / "slow"
ON_TWO_RANKS = {path.stem for path in FOLDER.glob("*.py") if "init_process_group" in path.read_text()}
_RUN = [sys.executable, "-c", "from stepscope.faces.terminal.run import run; run()"]
# A loader that runs ahead is caught waiting in a longer row of steps only.
_STEPS = {"too_many_workers": (24, 16)}
_OPTIONS = {"allocator_churn": ["--memory"]}


def capture(rule: str, folder: Path) -> None:
    """`stepscope run` of a rule's script with its defect (RULE.stepscope) and without.

    Of a script for two ranks, a folder of their captures (RULE).
    """
    for fixed in (False, True):
        # Without its delay either rank may come last, so that capture would tell nothing.
        if (rule, fixed) != ("straggling_rank", True):
            _capture(_arguments(rule, fixed, folder), 2 if rule in ON_TWO_RANKS else 1, folder)


def _capture(arguments: list[str], ranks: int, folder: Path) -> None:
    port = str(_free_port())
    runs = [WarmRun([*_RUN, *arguments], folder, _environment(rank, ranks, port)) for rank in range(ranks)]
    for run in runs:
        done = run.wait(1500)  # one rank would wait for a dead one for half an hour
        assert done.returncode == 0, (arguments, done.stderr)


def _environment(rank: int, ranks: int, port: str) -> dict[str, str]:
    job = {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": "lo",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    return {**os.environ, "OMP_NUM_THREADS": "1", **(job if ranks > 1 else {})}


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _arguments(rule: str, fixed: bool, folder: Path) -> list[str]:
    steps, recorded = _STEPS.get(rule, (7, 5))
    return [
        *_OPTIONS.get(rule, []),
        *("--warmup", "2", "--steps", str(recorded)),
        *("-o", str(folder / f"{rule}{'-fixed' if fixed else ''}.stepscope")),
        *(str(FOLDER / f"{rule}.py"), "--steps", str(steps)),
        *(["--fixed"] if fixed else []),
    ]
