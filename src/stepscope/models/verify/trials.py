"""Run a script in a fresh process, or in several that train together, and collect the results."""

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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stepscope.base.scratch import IN_PLACE, Scratch, plan_scratch, scratch_view
from stepscope.errors import CaptureError
from stepscope.record.script_runner import Program

Show = Callable[[str, str], None]
"""Shows a line of the script's output, under the label of its run."""
_POLL_S = 0.05  # seconds between looks at whether a process has ended; a run takes several
_LAST_LINES = 5  # lines of output that are kept, of which a failure cites the last


@dataclass(frozen=True)
class TrialRun:
    """One run of a script."""

    script: Program
    # warmup, steps: training steps that are skipped, and measured.
    warmup: int
    steps: int
    changes: Sequence[tuple[str, Mapping[str, Any]]] = ()
    capture: Path | None = None  # file to record the steps to, instead of timing them
    processes: int = 1
    prefix: str = ""  # words before the command of each process, with `{rank}` in them
    label: str = ""
    scratch: Scratch | None = None  # how the project is protected from the script; None for not at all


def script_scratch(script: Program, in_place: bool = False) -> Scratch:
    """How a script's project is protected from it; raises ScratchError."""
    folder = str(Path.cwd())
    target = script.target
    if script.is_module:  # a file of its package; one in the working folder if it is not found
        top = PathFinder.find_spec(target.partition(".")[0], [folder, *sys.path])
        target = (top.origin if top else None) or str(Path("__main__.py").absolute())
    return plan_scratch(target, folder, in_place=in_place)


def execute(run: TrialRun, show: Show) -> dict[str, Any]:
    """Run it; returns the results of the first process (`stepscope.record.verify_trial`); raises
    CaptureError if the script fails, or ends before all steps have been measured."""
    kept = [str(run.capture.parent)] if run.capture else []
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory(prefix="stepscope-"))
        view = scratch_view(run.scratch or Scratch(IN_PLACE), run.processes, [folder, *kept])
        scratch, store = stack.enter_context(view)
        seen = {"scratch": scratch.to_json(), "store": store} if run.scratch else {}
        results = [Path(folder, f"{rank}.json") for rank in range(run.processes)]
        port = os.environ.get("MASTER_PORT") or _free_port()
        children: list[_TrialProcess] = []
        try:
            for rank, result in enumerate(results):
                children.append(_TrialProcess(run, rank, result, port, show, seen))
            _wait(children)
        finally:
            for child in children:
                child.end()
        for child in children:
            child.raise_failure()
        return _complete(run, children[0].facts())


class _TrialProcess:
    def __init__(
        self, run: TrialRun, rank: int, result: Path, port: str, show: Show, seen: Mapping[str, Any]
    ) -> None:
        self._run, self._rank, self._result, self._show = run, rank, result, show
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self.stopped = False
        environment = {**os.environ, **_distributed(run, rank, port)}
        self._process = _started(_command(run, rank, result, seen), environment)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def code(self) -> int | None:
        """Its exit code; None while it runs."""
        return self._process.poll()

    def end(self) -> None:
        if self.code is None:
            self.stopped = True
            self._process.kill()
        self._process.wait()
        self._reader.join(1.0)
        if self._process.stdout and not self._reader.is_alive():
            self._process.stdout.close()

    def facts(self) -> dict[str, Any]:
        """The results that it wrote; empty if it wrote none."""
        return json.loads(self._result.read_text("utf-8")) if self._result.exists() else {}

    def raise_failure(self) -> None:
        if self.stopped:
            return  # perhaps while it wrote its results
        facts = self.facts()
        if facts and facts["failure"] is None and self.code == 0:
            return
        what = facts.get("failure")
        if not what:
            code = self.code or 0
            ending = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
            what = f"{ending}: {self._last[-1].strip()}" if self._last else ending
        under = " and ".join(name for name, _ in self._run.changes)
        script = self._run.script.target
        raise CaptureError(f"{script} fails {f'under {under}' if under else 'without any change'}: {what}")

    def _read(self) -> None:
        several = self._run.processes > 1
        label = f"{self._run.label}, rank {self._rank}" if several else self._run.label
        for line in self._process.stdout or ():
            if line.strip():
                self._last.append(line)
            self._show(label, line.rstrip("\n"))


def _wait(children: Sequence[_TrialProcess]) -> None:
    """Until all have ended, or one has failed."""
    while any(child.code is None for child in children):
        ended = [child for child in children if child.code is not None]
        if any(child.code or child.facts().get("failure") for child in ended):
            return
        time.sleep(_POLL_S)


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[str]:
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=environment,
        )
    except OSError as error:
        raise CaptureError(f"cannot run {command[0]}: {error.strerror}") from error


def _command(run: TrialRun, rank: int, result: Path, seen: Mapping[str, Any] | None = None) -> list[str]:
    trial = {
        **asdict(run.script),
        "warmup": run.warmup,
        "steps": run.steps,
        "result": str(result),
        "changes": run.changes,
        "capture": run.capture and str(run.capture),
        **(seen or {}),
    }
    words = [sys.executable, "-m", "stepscope.record.verify_trial", json.dumps(trial)]
    return [*_prefix(run.prefix, rank), *words]


def _prefix(text: str, rank: int) -> list[str]:
    try:
        return shlex.split(text.replace("{rank}", str(rank)))
    except ValueError as error:
        raise CaptureError(f"--prefix {text!r} is not a command line: {error}") from error


def _distributed(run: TrialRun, rank: int, port: str) -> dict[str, str]:
    """The environment variables of torchrun; MASTER_ADDR is the user's, else this machine."""
    if run.processes < 2:
        return {}
    words = {**dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)), "MASTER_PORT": port}
    words |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(run.processes))
    if "MASTER_ADDR" not in os.environ:
        words["MASTER_ADDR"] = "127.0.0.1"  # whatever this machine's own name resolves to
        if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
            words["GLOO_SOCKET_IFNAME"] = "lo"
    return words


def _free_port() -> str:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def _complete(run: TrialRun, facts: dict[str, Any]) -> dict[str, Any]:
    """The results, if all steps were measured and every change was applied."""
    if facts.get("torch") is None:
        raise CaptureError(f"{run.script.target} does not train with PyTorch: it never imports torch")
    if facts.get("steps_seen") == 0:
        raise CaptureError(
            f"{run.script.target} does not train with torch.optim: no optimizer made a step in its process"
        )
    got = facts["recorded"] if run.capture else len(facts["steps_ns"])
    if got < run.steps:
        raise CaptureError(
            f"{run.script.target} made {facts.get('steps_seen', got)} steps; it needs {run.warmup} "
            f"to warm up and {run.steps} more: let it run longer, or lower --warmup and --steps"
        )
    for name, evidence in facts["applied"].items():
        if not evidence["count"]:
            raise CaptureError(f"{name}: nothing to apply it to in {run.script.target}")
    return facts
