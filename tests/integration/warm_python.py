"""Commands of Python in forks of a process that has a framework imported, which takes seconds.

What concerns the start of a process itself (who imports what and when, signals, exit codes)
is tested with real processes.
"""

from __future__ import annotations

import array
import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

_SERVER = """
import array, gc, importlib, json, os, socket, sys, types

for name in sys.argv[2:]:
    importlib.import_module(name)

client = socket.socket(fileno=int(sys.argv[1]))
gc.freeze()  # and so it stays: a fork that collects a framework at its end takes 2 s for that
while True:
    text, ancillary, _, _ = client.recvmsg(1 << 20, socket.CMSG_LEN(2 * array.array("i").itemsize))
    if not text:
        sys.exit()
    wanted = json.loads(text)
    if "child" in wanted:
        answer = os.waitstatus_to_exitcode(os.waitpid(wanted["child"], 0)[1])
    else:
        output, errors = array.array("i", ancillary[0][2])
        answer = os.fork()
        if not answer:
            break
        os.close(output), os.close(errors)
    client.sendall(b"%d\\n" % answer)
client.close()
os.dup2(output, 1), os.dup2(errors, 2)
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
os.closerange(3, 64)
os.chdir(wanted["folder"])
os.environ.clear()
os.environ.update(wanted["environment"])
first, *words = wanted["words"]
if wanted["forked"]:
    sys.path.append(wanted["forked"])
    import forked, subprocess
    subprocess.Popen = forked.ForkedPopen
program = types.ModuleType("__main__")
program.__builtins__ = __builtins__
sys.modules["__main__"] = program
if first == "-c":
    text, name = words[0], "<string>"
    sys.argv, sys.path[0] = ["-c", *words[1:]], ""
else:
    text, name = open(first).read(), os.path.abspath(first)
    sys.argv, sys.path[0] = [first, *words], os.path.dirname(name)
    program.__file__ = name
try:
    exec(compile(text, name, "exec"), program.__dict__)
except Exception as error:
    # Shown without the frame of this file, as a process of its own would show it.
    error.__traceback__ = error.__traceback__.tb_next
    sys.excepthook(type(error), error, error.__traceback__)
    sys.exit(1)
"""


TORCH = ("torch", "torch._dynamo", "torch.profiler")
JAX = ("jax", "jax.numpy", "jax.profiler")


class _WarmPython:
    """A process that imported some modules once and forks for every command."""

    def __init__(self, modules: Sequence[str]) -> None:
        own, theirs = socket.socketpair()
        command = [sys.executable, "-c", _SERVER, str(theirs.fileno()), *modules]
        self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self._socket = own
        self._answers = own.makefile()
        atexit.register(self.close)

    def ask(self, wanted: dict[str, Any], files: Sequence[int] = ()) -> int:
        """The answer to a request; `files` are passed with it."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        self._socket.sendmsg([json.dumps(wanted).encode()], rights)
        return int(self._answers.readline())

    def limit(self, seconds: float) -> None:
        """How long an answer may take."""
        self._socket.settimeout(seconds)

    def close(self) -> None:
        self._socket.close()
        self._process.kill()
        self._process.wait()


_warm_python = functools.cache(_WarmPython)


class WarmRun:
    """A command that runs in a fork; several may run at once."""

    def __init__(
        self,
        command: Sequence[Any],
        folder: Path,
        env: dict[str, str] | None = None,
        children_forked: bool = False,
        modules: Sequence[str] = TORCH,
    ) -> None:
        self._python = _warm_python(modules)
        self._command = command
        self._output, self._errors = (_file() for _ in range(2))
        wanted = {
            "words": [str(word) for word in command[1:]],
            "folder": str(folder),
            "environment": env or dict(os.environ),
            "forked": str(Path(__file__).parent) if children_forked else "",
        }
        files = self._output.fileno(), self._errors.fileno()
        self._child = self._python.ask(wanted, files)

    def wait(self, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Its exit code and what it printed."""
        self._python.limit(timeout)
        try:
            code = self._python.ask({"child": self._child})
        except TimeoutError:
            os.kill(self._child, signal.SIGKILL)
            _warm_python.cache_clear()  # a process that still waits would answer the next command late
            raise
        with self._output as output, self._errors as errors:
            output.seek(0), errors.seek(0)
            return subprocess.CompletedProcess(self._command, code, output.read(), errors.read())


def _file() -> IO[str]:
    return tempfile.TemporaryFile("w+")


def run_stepscope(
    words: Sequence[str], folder: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """A command of stepscope in a fork, and what it starts in forks of that."""
    program = "from stepscope.faces.terminal import main; main()"
    return run_warm([sys.executable, "-c", program, *words], folder, 300, env, children_forked=True)


def run_warm(
    command: Sequence[Any],
    folder: Path,
    timeout: float = 120.0,
    env: dict[str, str] | None = None,
    children_forked: bool = False,
    modules: Sequence[str] = TORCH,
) -> subprocess.CompletedProcess[str]:
    """Like `subprocess.run([sys.executable, ...])`, with texts of output and errors.

    With `children_forked`, what the command starts as processes are forks of it. `modules` are
    imported before.
    """
    return WarmRun(command, folder, env, children_forked, modules).wait(timeout)
