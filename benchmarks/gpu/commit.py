"""Which commit is checked out, also where the checkout traveled without its history."""

from __future__ import annotations

import subprocess

from benchmarks.gpu.places import COMMIT, ROOT

_DESCRIBE = ("describe", "--always", "--exclude=*", "--abbrev=40", "--dirty")


def commit() -> str | None:
    """What git says, or else what was noted by `prepare_wheels`."""
    said = _git() if (ROOT / ".git").exists() else ""
    return said or (COMMIT.read_text().strip() if COMMIT.exists() else None)


def note_commit() -> None:
    """Let it travel with the wheels."""
    COMMIT.write_text(f"{_git() or 'unknown'}\n")


def _git() -> str:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *_DESCRIBE], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip()
