"""`stepscope run --ranks`: which ranks are recorded, and that others run as without stepscope."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepscope.errors import CaptureError
from stepscope.record.options import Rank, chosen_ranks


@pytest.mark.parametrize(
    ("text", "expected"),
    [("all", set(range(16))), ("0,8", {0, 8}), ("2-4, last", {2, 3, 4, 15}), ("first-of-node,1", {0, 1, 8})],
)
def test_ranks_by_number_range_and_name(
    text: str, expected: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert chosen_ranks(text, Rank(5, 16)) == expected


@pytest.mark.parametrize("text", ["", "x", "16", "3-2", "0,-1", "0-16"])
def test_what_is_no_rank_of_the_job_is_an_error(text: str) -> None:
    with pytest.raises(CaptureError, match=r"--ranks: "):
        chosen_ranks(text, Rank(5, 16))


def test_machines_are_known_from_the_launcher_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    with pytest.raises(CaptureError, match="does not set LOCAL_WORLD_SIZE"):
        chosen_ranks("first-of-node", Rank(0, 16))


@pytest.mark.main
@pytest.mark.parametrize(("ranks", "recorded"), [("0", False), ("1", True)])
def test_other_ranks_leave_no_file_and_nothing_behind(ranks: str, recorded: bool, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys\nprint(*map(type, sys.meta_path))\nsys.exit(7)\n")
    run = [sys.executable, "-m", "stepscope", "run", "--ranks", ranks, str(script)]
    env = {**os.environ, "RANK": "1", "WORLD_SIZE": "2"}
    done = subprocess.run(run, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 7
    assert ("stepscope" in done.stdout) == recorded
    assert bool(done.stderr) == recorded
