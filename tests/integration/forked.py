"""Processes of Python that a program starts, as forks of it: what it has imported they have.

python forked.py PROGRAM...    # imports PyTorch, and runs PROGRAM with its children as forks
"""

from __future__ import annotations

import atexit
import gc
import os
import runpy
import subprocess
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

_MOST_FILES = 256


class ForkedPopen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but that a command of this Python runs in a fork of this process.

    It runs where others set up a child before its program is loaded, which here never happens.
    A command that names JAX starts as usual: where PyTorch is imported is another case.
    """

    def __init__(self, command: Sequence[Any], **options: Any) -> None:
        words = [str(word) for word in command]
        if (
            words[0] == sys.executable
            and words[1].endswith(("-c", "-m", ".py"))
            and not any("jax" in word for word in words)
        ):
            kept = options.get("pass_fds", ())
            ready, env = options.get("preexec_fn"), options.get("env")
            options["preexec_fn"] = partial(_child, words[1:], env, kept, ready)
            sys.stdout.flush()
        super().__init__(command, **options)


def _child(
    words: list[str], env: dict[str, str] | None, kept: Sequence[int], ready: Callable[[], object] | None
) -> None:
    """All of the life of a child."""
    code = 1
    weakref.finalize._registry.clear()  # type: ignore[attr-defined]  # temporary folders are the parent's
    try:
        for file in {*range(3, _MOST_FILES)} - {*kept}:  # one of them tells the parent of a failure
            _close(file)
        if ready:
            ready()
        if env is not None:
            os.environ.clear()
            os.environ.update(env)
        code = exit_code(partial(run_python, words))
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _close(file: int) -> None:
    with suppress(OSError):
        os.close(file)


def exit_code(program: Callable[[], object]) -> int:
    """What a process of this program would end with; an error is shown."""
    try:
        program()
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        return 1
    return 0


def run_python(words: list[str]) -> None:
    """`python WORDS...` in this process."""
    main = types.ModuleType("__main__")
    sys.modules["__main__"] = main
    if words[0] == "-m":
        sys.argv, sys.path[0] = words[1:], str(Path.cwd())
        sys.modules.pop(words[1], None)
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv, sys.path[0] = ["-c", *words[2:]], ""
        exec(compile(words[1], "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = words, str(Path(words[0]).parent)
        main.__file__ = words[0]
        exec(compile(Path(words[0]).read_text("utf-8"), words[0], "exec"), main.__dict__)


if __name__ == "__main__":
    for module in ("torch._dynamo", "torch.profiler"):
        import_module(module)

    gc.freeze()
    subprocess.Popen = ForkedPopen  # type: ignore[misc]
    run_python(sys.argv[1:])
