"""A command that is killed leaves whole files or none, and its next run removes the rest.

Commands that write are ended at a random moment: by SIGKILL, SIGTERM or SIGINT, or by copying their
folder, which is what a power cut leaves. Half of them write over the files of an earlier run. Every
second moment lies at random within the length of an undisturbed run, every other one within 50 ms
of the first change of a file. Then every file is read.

    STEPSCOPE_KILLS=200 python -m pytest tests/integration/test_kills.py
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from writing_commands import (
    COMMANDS,
    PATIENCE_S,
    check_files,
    files_in,
    finish,
    finish_in_fork,
    start,
    strangers,
    write_inputs,
)

KILLS = int(os.environ.get("STEPSCOPE_KILLS", "12"))
SEED = int(os.environ.get("STEPSCOPE_KILLS_SEED", "0"))
ENDS = ("KILL", "TERM", "INT", "power cut")
NEAR_S = 0.05


@dataclass(frozen=True)
class Whole:
    """An undisturbed run: how long it took, what it printed, and the folder that it left."""

    seconds: float
    output: bytes
    folder: Path


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    write_inputs(folder)
    return folder


@pytest.fixture(scope="session")
def whole(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Whole]:
    """The undisturbed run of a command."""
    known: dict[str, Whole] = {}

    def of(name: str) -> Whole:
        if name not in known:
            folder = tmp_path_factory.mktemp("whole")
            shutil.copytree(inputs, folder, dirs_exist_ok=True)
            begun = time.monotonic()
            code, output = finish(COMMANDS[name], folder)
            assert code == 0, output.decode()
            known[name] = Whole(time.monotonic() - begun, output, folder)
        return known[name]

    return of


@pytest.mark.skipif(os.name != "posix", reason="there are no such signals")
@pytest.mark.parametrize("number", range(KILLS))
def test_a_killed_command_leaves_whole_files_or_none(
    number: int, whole: Callable[[str], Whole], inputs: Path, tmp_path: Path
) -> None:
    chance = random.Random(f"{SEED} {number}")
    name, end = list(COMMANDS)[number % len(COMMANDS)], chance.choice(ENDS)
    command, undisturbed = COMMANDS[name], whole(name)
    is_over = bool(command.checks) and chance.random() < 0.5
    folder = tmp_path / "work"
    shutil.copytree(undisturbed.folder if is_over else inputs, folder)
    process = start(command, folder)
    wait(process, folder, chance, undisturbed.seconds)
    folder = end_by(end, process, folder, tmp_path / "copy")
    check_files(command, folder, is_over)
    # Only of what prints it matters how it starts.
    code, output = (finish_in_fork if command.checks else finish)(command, folder)
    assert code == 0, output.decode()
    assert command.checks or output == undisturbed.output
    check_files(command, folder, is_over=True)
    assert strangers(command, folder, inputs) == []


def wait(process: subprocess.Popen[bytes], folder: Path, chance: random.Random, seconds: float) -> None:
    """Until a random moment."""
    if chance.random() < 0.5:
        before = files_in(folder)
        while process.poll() is None and files_in(folder) == before:
            time.sleep(0.002)
        seconds = NEAR_S
    time.sleep(chance.uniform(0, seconds))


def end_by(end: str, process: subprocess.Popen[bytes], folder: Path, copy: Path) -> Path:
    """End a command; the folder to look at."""
    if end == "power cut":
        copy_while_it_changes(folder, copy)
        process.kill()
    elif process.poll() is None:
        process.send_signal(getattr(signal, f"SIG{end}"))
    process.communicate(timeout=PATIENCE_S)
    return copy if end == "power cut" else folder


def copy_while_it_changes(source: Path, target: Path) -> None:
    """Copy what is there; a file that vanishes meanwhile is not."""
    for name in files_in(source):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copy2(source / name, target / name)
        except FileNotFoundError:
            (target / name).unlink(missing_ok=True)
