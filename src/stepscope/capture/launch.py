"""`stepscope run`: a program under a session, and out again as the program would have gone."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from stepscope.capture import exits
from stepscope.capture.archive import check_target
from stepscope.capture.contexts.options import ContextOptions
from stepscope.capture.contexts.session import ContextSession
from stepscope.capture.imports import AfterImport
from stepscope.capture.manifest import Result, Run
from stepscope.capture.options import Options
from stepscope.capture.program import ModuleMissing, Program
from stepscope.capture.session import Ending, Session
from stepscope.capture.target import target_path

_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}
_OUR_FOLDER = str(Path(__file__).parent)


def run_program(program: Program, options: Options | ContextOptions, output: str | None) -> None:
    """Run `program` to its end in this process and write a capture of it.

    Args:
        program: the script or module.
        options: what to record of a few training steps, or what to collect of the whole run.
        output: the file to write; None for one named after the program.

    Raises:
        CaptureError: before the program starts, if it or the output cannot be had.
        SystemExit: as the program ends, if it does not just end.
    """
    session = _session(program, options, output)
    program.check()
    check_target(session.path)
    exits.prepare()
    watches = [AfterImport("torch", session.attach)]
    if isinstance(session, Session):
        watches.append(AfterImport("jax", session.attach_jax))
    for watch in watches:
        watch.install()
    try:
        program.execute()
    except ModuleMissing:
        for watch in watches:
            watch.remove()
        raise
    except SystemExit as error:
        _finish(session, Ending(detail=f"exited with {error.code!r}"), error.code)
        raise
    except KeyboardInterrupt as error:
        _show(error)
        _finish(session, Ending("interrupted", "was interrupted"), 130)
        exits.by_interrupt()
    except BaseException as error:
        _show(error)
        _finish(session, Ending("raised", f"raised {type(error).__name__}"), 1)
        raise SystemExit(1) from None
    else:
        _finish(session, Ending(), 0)


def _session(
    program: Program, options: Options | ContextOptions, output: str | None
) -> Session | ContextSession:
    run = Run(program.command, options if isinstance(options, Options) else Options())
    path = target_path(output, program.name, run.rank)
    if isinstance(options, Options):
        return Session(run, path)
    return ContextSession(run, path, options)


def _finish(session: Session | ContextSession, ending: Ending, code: object) -> None:
    if session.is_forked:
        exits.leave_forked_child(code)
    session.finish(ending)
    if session.failure:
        _say(session.failure)
    elif session.result and session.run.rank.rank == 0:
        file = _relative(session.path.parent if session.run.rank.world_size > 1 else session.path)
        for warning in session.result.warnings:
            _say(f"warning: {warning}")
        _say(f"{session.result.message}; wrote {file}")
        for line in _next(session.result, isinstance(session, ContextSession), file):
            _say(line)


def _next(result: Result, contexts: bool, file: str) -> Iterator[str]:
    """What to do now; nothing where the run broke off before it trained."""
    if contexts:
        yield f"next: stepscope contexts {file}"
    elif result.steps_recorded:
        yield f"next: stepscope report {file}"
    elif result.outcome == "no_steps":
        yield f"no step, no report: {_why_no_steps()}"
    elif result.steps_seen:
        yield f"no step, no report: {_why_none_is_whole()}"


def _why_none_is_whole() -> str:
    if "torch" in sys.modules or "jax" not in sys.modules:
        return "the first step of a run is never recorded, the second one is"
    return "with --warmup 1 the fifth step of a run is recorded, no earlier one"


def _why_no_steps() -> str:
    if _LAUNCHERS & {*sys.modules, getattr(sys.modules["__main__"].__spec__, "name", "")}:
        return (
            "the script ran in other processes; let their launcher start stepscope, as in "
            "torchrun --no-python --nproc-per-node 2 stepscope run script.py"
        )
    if "torch" in sys.modules:
        return (
            "a step ends when an optimizer of torch.optim has stepped or a model is called again; "
            "stepscope run --contexts needs neither"
        )
    if "jax" in sys.modules:
        return (
            "a step ends when a function under jax.jit has returned; stepscope report FOLDER opens "
            "what jax.profiler.trace(FOLDER) writes"
        )
    return "stepscope run records PyTorch and JAX, in the process that it starts"


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(f"stepscope: {line}", file=sys.stderr, flush=True)


def _relative(path: Path) -> str:
    """Short where it can be: below the current folder."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _show(error: BaseException) -> None:
    """Print a traceback as Python does, without our frames, through the program's own hook."""
    _hide_our_frames(error)
    sys.excepthook(type(error), error, error.__traceback__)


def _hide_our_frames(error: BaseException | None) -> None:
    while error is not None:
        error.__traceback__ = _without_our_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _without_our_frames(traceback: TracebackType | None) -> TracebackType | None:
    if traceback is None:
        return None
    traceback.tb_next = _without_our_frames(traceback.tb_next)
    ours = traceback.tb_frame.f_code.co_filename.startswith(_OUR_FOLDER)
    return traceback.tb_next if ours else traceback
