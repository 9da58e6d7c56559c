"""The measuring process, from the parent's side: requests out, results in; it can be stopped."""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.base.scratch import Scratch
from stepscope.errors import BatchError
from stepscope.record.batch_size.request import RunFacts, RunRequest

# stepscope may be newer than what the script's interpreter has installed, or absent there: its
# folder is looked into for stepscope alone.
_START = """
import json, sys
sys.path.insert(0, {folder!r})
try:
    import stepscope
    del sys.path[0]
    from stepscope.record.batch_size.worker import main
    main()
except Exception as error:
    print(json.dumps({{"failed": type(error).__name__ + ": " + str(error)}}), flush=True)
    raise
"""
_SOURCES = str(Path(__file__).parents[3])
_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)')
_GRACE_S = 20.0  # after a run's own timeout, which reports where it hangs
_POLL_S = 0.1  # between looks at whether to cancel
_START_S = 120.0  # to import a framework


class Cancelled(BatchError):
    """The caller canceled the measurement."""


@dataclass(frozen=True)
class Reply:
    """The process's answer: the facts, and the last output of the script."""

    facts: RunFacts
    output: str


class Worker:
    """Runs requests one after the other; starts its process when first asked.

    Args:
        python: the interpreter that the script runs under; by default ours.
        preload: the framework that the process imports once for all requests, where that is safe.
        cancel: when set, what runs is killed and `Cancelled` raised; a process that forks is kept.
    """

    def __init__(
        self, python: str | None = None, preload: str = "torch", cancel: threading.Event | None = None
    ) -> None:
        self._python = python or sys.executable
        self._preload = preload
        self.cancel = cancel or threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._forks = False
        self._child: int | None = None  # what runs the request, where the process forks
        self._unread = b""
        self._failure = ""  # what the process says of its end
        self._folder = tempfile.TemporaryDirectory(prefix="stepscope-batch-")
        self._count = 0

    @property
    def folder(self) -> Path:
        """For results and captures; gone when the worker is closed."""
        return Path(self._folder.name)

    def start(self) -> None:
        """Have the process ready before it is needed."""
        if self._process is None or self._process.poll() is not None:
            self._process = self._spawn()

    def run(self, request: RunRequest) -> Reply:
        """Measure.

        Args:
            request: its `result` and `log` are chosen here.

        Returns:
            What was reported; its `outcome` is measured, estimated, too_short, no_steps,
            out_of_memory or failed.

        Raises:
            Cancelled: if asked to stop.
            BatchError: the interpreter cannot be started.
        """
        self._count += 1
        result = self.folder / f"{self._count}.json"
        log = self.folder / f"{self._count}.log"
        scratch = request.scratch and Scratch.from_json(request.scratch)
        # What the script writes to its scratch view is gone with the run.
        with scratch.new_store() if scratch else contextlib.nullcontext("") as store:
            request = replace(request, result=str(result), log=str(log), store=store)
            self.start()
            self._failure = ""
            self._send(request)
            status = self._wait(request)
        output = log.read_text("utf-8", "replace") if log.exists() else ""
        return Reply(self._facts(result, status, output, request), output)

    def close(self) -> None:
        """End the process, whatever it does, and remove its files."""
        self._kill()
        self._folder.cleanup()

    def _spawn(self) -> subprocess.Popen[bytes]:
        words = [self._python, "-c", _START.format(folder=_SOURCES), self._preload]
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            raise BatchError(f"cannot run {self._python}: {error.strerror}; choose another one") from error
        self._process, self._unread, self._failure = process, b"", ""
        answer = self._answer(time.monotonic() + _START_S)
        if answer is None or "forks" not in answer:
            reason = _why_not_started(process, self._failure)
            self._kill()
            raise BatchError(f"{self._python} {reason}")
        self._forks = bool(answer["forks"])
        return process

    def _send(self, request: RunRequest) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(request.to_json().encode() + b"\n")
        self._process.stdin.flush()

    def _wait(self, request: RunRequest) -> int | None:
        """The exit status; None where it hung and had to be killed."""
        assert self._process is not None
        deadline = time.monotonic() + request.timeout_s + _GRACE_S
        answer = self._answer(deadline)
        if answer is not None and "child" in answer:
            self._child = int(answer["child"])
            answer = self._answer(deadline)
        if answer is not None:
            self._child = None
            return int(answer["status"])
        if not self._forks and self._process.poll() is not None:
            ended, self._process = self._process, None
            _close_streams(ended)
            return ended.returncode
        self._kill()
        return None

    def _answer(self, deadline: float, heed_cancel: bool = True) -> dict[str, Any] | None:
        """The next answer; None where the process ended or is too late."""
        process = self._process
        assert process is not None
        assert process.stdout is not None
        while time.monotonic() < deadline:
            if (answer := self._next()) is not None:
                return answer
            if heed_cancel and self.cancel.is_set():
                self._stop()
                raise Cancelled("cancelled")
            ready, _, _ = select.select([process.stdout], [], [], _POLL_S)
            if ready:
                some = os.read(process.stdout.fileno(), 1 << 16)
                if not some:
                    process.wait()
                    return None
                self._unread += some
        return None

    def _next(self) -> dict[str, Any] | None:
        """The first answer among what was read; what else the interpreter prints is skipped."""
        while b"\n" in self._unread:
            line, _, self._unread = self._unread.partition(b"\n")
            with contextlib.suppress(ValueError):
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    continue
                if "failed" not in answer:
                    return answer
                self._failure = str(answer["failed"])
        return None

    def _facts(self, result: Path, status: int | None, output: str, request: RunRequest) -> RunFacts:
        """The result, or what its absence means."""
        if result.exists():
            return json.loads(result.read_text("utf-8"))
        if status == -signal.SIGKILL:
            return {"outcome": "out_of_memory", "error": {"message": "the system killed the process"}}
        hung = status is None or "Timeout (" in output
        died = f"the process exited with code {status}"
        if status is not None and status < 0:
            died = f"the process was killed by signal {signal.Signals(-status).name}"
        return _failed(hung, self._failure or died, output, request)

    def _stop(self) -> None:
        """End the request; the process is kept where it forks."""
        if self._child is None:
            return self._kill()
        _kill_group(self._child)
        ended = self._answer(time.monotonic() + _GRACE_S, heed_cancel=False)
        self._child = None
        return None if ended else self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        child, self._child = self._child, None
        if child is not None:
            _kill_group(child)
        if process is None:
            return
        if not _kill_group(process.pid):
            process.kill()
        process.wait()
        _close_streams(process)


def _why_not_started(process: subprocess.Popen[bytes], failure: str) -> str:
    try:
        process.wait(1)  # one that has closed its output is about to end
    except subprocess.TimeoutExpired:
        return (
            f"did not start stepscope's measuring process within {_START_S:g} s; "
            "try again when the machine is less busy"
        )
    reason = " ".join(failure.split()) or "it needs Python 3.10 or later and PyTorch"
    return f"cannot start stepscope's measuring process: {reason}"


def _close_streams(process: subprocess.Popen[bytes]) -> None:
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def _kill_group(leader: int) -> bool:
    """Kill a process and what it started; whether there was anything to kill."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)
        return True
    return False


def _failed(hung: bool, words: str, output: str, request: RunRequest) -> RunFacts:
    """What is reported of a run without a result."""
    file, line = _last_place(output, request)
    return {
        "outcome": "failed",
        "error": {
            "type": "Hang" if hung else "Crash",
            "message": f"timed out after {request.timeout_s:g} s" if hung else words,
            "file": file,
            "line": line,
        },
    }


def _last_place(output: str, request: RunRequest) -> tuple[str | None, int | None]:
    """The innermost line of the script's folder in a dump of faulthandler's."""
    folder = str(Path(request.entry).parent)
    for match in _FRAME.finditer(output):
        if match["file"].startswith(folder):
            return match["file"], int(match["line"])
    return request.entry, None
