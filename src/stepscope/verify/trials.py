"""Runs a script in a fresh process, or in several that train together, and gets the facts back."""

from __future__ import annotations

import json
import os
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.errors import CaptureError

Show = Callable[[str, str], None]
"""Shows a line of the script's output, under the label of its run."""
_POLL_S = 0.05
_LAST_LINES = 5


@dataclass(frozen=True)
class Script:
    """What is run: a script by its path, or a module by its name, with its arguments."""

    target: str
    arguments: Sequence[str] = ()
    is_module: bool = False


@dataclass(frozen=True)
class Run:
    """One run of a script.

    Attributes:
        script: what to run.
        warmup, steps: training steps to let pass, and to measure.
        changes: name and parameters of each change to apply.
        capture: file to record the steps to, instead of timing them.
        processes: how many train together.
        prefix: words to put before each process's command, with `{rank}` in them.
        label: names it in the output.
    """

    script: Script
    warmup: int
    steps: int
    changes: Sequence[tuple[str, Mapping[str, Any]]] = ()
    capture: Path | None = None
    processes: int = 1
    prefix: str = ""
    label: str = ""


def execute(run: Run, show: Show) -> dict[str, Any]:
    """Run it to its end; the facts that the first process wrote (`stepscope.capture.trial`).

    Raises:
        CaptureError: if the script fails, or ends before all steps have been measured.
    """
    with TemporaryDirectory(prefix="stepscope-") as folder:
        results = [Path(folder, f"{rank}.json") for rank in range(run.processes)]
        port = os.environ.get("MASTER_PORT") or _free_port()
        children: list[_Child] = []
        try:
            for rank, result in enumerate(results):
                children.append(_Child(run, rank, result, port, show))
            _wait(children)
        finally:
            for child in children:
                child.end()
        for child in children:
            child.raise_failure()
        return _complete(run, children[0].facts())


class _Child:
    """One process of a run."""

    def __init__(self, run: Run, rank: int, result: Path, port: str, show: Show) -> None:
        self._run, self._rank, self._result, self._show = run, rank, result, show
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self.stopped = False
        environment = {**os.environ, **_distributed(run, rank, port)}
        self._process = _started(_command(run, rank, result), environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        """Stop it if it still runs."""
        if self.code is None:
            self.stopped = True
            self._process.kill()
        self._process.wait()
        self._reader.join(1.0)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()

    def facts(self) -> dict[str, Any]:
        """What it wrote; empty where it did not."""
        if not self._result.exists():
            return {}
        facts: dict[str, Any] = json.loads(self._result.read_text("utf-8"))
        return facts

    def raise_failure(self) -> None:
        """Raise CaptureError if it failed by itself."""
        if self.stopped:
            return  # perhaps while it wrote its facts
        facts = self.facts()
        if facts and facts["failure"] is None and self.code == 0:
            return
        what = facts.get("failure") or f"{_ending(self.code)}{self._words()}"
        under = " and ".join(name for name, _ in self._run.changes)
        script = self._run.script.target
        if under:
            raise CaptureError(f"{script} fails under {under}: {what}")
        raise CaptureError(f"{script} fails as it is, without any change: {what}")

    def _words(self) -> str:
        return f": {self._last[-1].strip()}" if self._last else ""

    def _read(self) -> None:
        several = self._run.processes > 1
        label = f"{self._run.label}, rank {self._rank}" if several else self._run.label
        for line in self._process.stdout or ():
            if line.strip():
                self._last.append(line)
            self._show(label, line.rstrip("\n"))


def _wait(children: Sequence[_Child]) -> None:
    """Until all have ended, or one has failed."""
    while any(child.code is None for child in children):
        if any(child.code for child in children):
            return
        if any(child.facts().get("failure") for child in children if child.code is not None):
            return
        time.sleep(_POLL_S)


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", env=environment,
        )  # fmt: skip
    except OSError as error:
        raise CaptureError(
            f"expected a program to run, found that {command[0]!r} cannot be: {error.strerror}"
        ) from error


def _command(run: Run, rank: int, result: Path) -> list[str]:
    trial = {
        "target": run.script.target,
        "arguments": list(run.script.arguments),
        "is_module": run.script.is_module,
        "warmup": run.warmup,
        "steps": run.steps,
        "result": str(result),
        "changes": [[name, dict(values)] for name, values in run.changes],
        "capture": None if run.capture is None else str(run.capture),
    }
    words = [sys.executable, "-m", "stepscope.capture.trial", json.dumps(trial)]
    return [*_prefix(run.prefix, rank), *words]


def _prefix(text: str, rank: int) -> list[str]:
    try:
        return shlex.split(text.replace("{rank}", str(rank)))
    except ValueError as error:
        raise CaptureError(f"expected words for --prefix, found {text!r}: {error}") from error


def _distributed(run: Run, rank: int, port: str) -> dict[str, str]:
    """What torchrun tells its processes; MASTER_ADDR is the user's to say, else this machine."""
    if run.processes < 2:
        return {}
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(run.processes),
        "LOCAL_WORLD_SIZE": str(run.processes),
        **_meeting(),
        "MASTER_PORT": port,
    }


def _meeting() -> dict[str, str]:
    """Where the user says; otherwise on this machine, whatever it takes its own name for."""
    if "MASTER_ADDR" in os.environ:
        return {}
    here = {"MASTER_ADDR": "127.0.0.1"}
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        here["GLOO_SOCKET_IFNAME"] = "lo"
    return here


def _free_port() -> str:
    """A port that nothing listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _complete(run: Run, facts: dict[str, Any]) -> dict[str, Any]:
    """The facts, if all steps have been measured and every change found something."""
    if facts.get("torch") is None:
        raise CaptureError(
            f"expected {run.script.target} to train with PyTorch, found that it never imports torch"
        )
    if facts.get("steps_seen") == 0:
        raise CaptureError(
            f"expected {run.script.target} to train with an optimizer of torch.optim, found that "
            "none stepped in its process"
        )
    got = facts["recorded"] if run.capture else len(facts["steps_ns"])
    if got < run.steps:
        raise CaptureError(
            f"expected {run.script.target} to make {run.warmup} steps to warm up and {run.steps} "
            f"more, found {facts.get('steps_seen', got)} in all; let it run longer, or ask for "
            "fewer with --warmup and --steps"
        )
    for name, evidence in facts["applied"].items():
        if not evidence["count"]:
            raise CaptureError(f"{name} found nothing to apply to in {run.script.target}")
    return facts


def _ending(code: int | None) -> str:
    return f"it was ended by signal {-code}" if code and code < 0 else f"it ended with code {code}"
