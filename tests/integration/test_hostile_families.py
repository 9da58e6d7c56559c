"""Families of files made to do harm: each is read, or refused in one line, within its bounds.

Each runs in a process of its own that the system ends after 10 s of CPU time and at 4 GB; it may
take 600 MB.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hostile_families import Family, archives, databases, snapshots
from warm_python import run_warm

MODULES = (
    "pyarrow",
    "numpy",
    "stepscope.read",
    "stepscope.facts.annotate",
    "stepscope.faces.terminal.commands",
)
PROGRAM = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (10, 11))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
from stepscope.faces.terminal import main
try:
    main()
finally:
    kinds = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    print(max(resource.getrusage(kind).ru_maxrss for kind in kinds) >> 10, file=sys.stderr)
"""
MOST_MB = 600
MOST_LINES = 30  # of warnings for a file that is read
CASES_EACH = 10
FAMILIES: dict[str, tuple[str, str, Family]] = {
    "snapshots": ("memory", "a.pickle", snapshots()),
    "databases": ("report", "a.sqlite", databases()),
    "archives": ("report", "a.stepscope", archives()),
}


def faults(command: str, path: Path) -> Iterator[str]:
    """What is wrong with how a command ends for a file."""
    done = run_warm(
        [sys.executable, "-c", PROGRAM, command, "--no-cache", path], path.parent, modules=MODULES
    )
    if done.returncode not in (0, 2) or "Traceback" in done.stderr:
        yield f"exit code {done.returncode}: {done.stderr[-300:]}"
        return
    *lines, megabytes = done.stderr.splitlines()
    if int(megabytes) > MOST_MB:
        yield f"{megabytes} MB"
    if len(lines) != 1 if done.returncode else len(lines) > MOST_LINES:
        yield f"{len(lines)} lines: {lines[:3]}"


def cases() -> Iterator[object]:
    """The first cases of each family, and all of them, in blocks."""
    for family, (_, _, made) in FAMILIES.items():
        names = list(made)
        yield pytest.param(family, names[3 :: len(names) // 3], id=f"{family}, a few")
        for first in range(0, len(names), CASES_EACH):
            every = pytest.mark.full(every=5)
            yield pytest.param(family, names[first : first + CASES_EACH], id=f"{family} {first}", marks=every)


@pytest.mark.parametrize(("family", "names"), list(cases()))
def test_every_file_is_read_or_refused(family: str, names: list[str], tmp_path: Path) -> None:
    command, file, made = FAMILIES[family]
    wrong = {}
    for name in names:
        (tmp_path / file).write_bytes(made[name]())
        if found := list(faults(command, tmp_path / file)):
            wrong[name] = found
    assert not wrong
