"""`stepscope run`: run a program under a session and end as the program would have ended."""

import atexit
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias

from stepscope.base import watch_format
from stepscope.record import fork_warnings
from stepscope.record import process_exit as exits
from stepscope.record.capture_file import check_target
from stepscope.record.child_processes import ChildPlan, ChildProcesses
from stepscope.record.contexts import ContextOptions, ContextSession
from stepscope.record.manifest import Run, RunResult
from stepscope.record.memory.out_of_memory import find_out_of_memory
from stepscope.record.options import Rank, RecordOptions, chosen_ranks, shown, target_path
from stepscope.record.patch import AfterImport, pass_on
from stepscope.record.process_exit import Messages, show
from stepscope.record.run_shares.run_shares import RunClock
from stepscope.record.script_runner import ModuleMissing, Program
from stepscope.record.session import Ending, Session
from stepscope.record.unreplaced import OwnFunctions
from stepscope.record.watch.watch_session import WatchSession

AnySession: TypeAlias = Session | ContextSession | WatchSession
_LAUNCHERS = {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"}


def run_program(
    program: Program,  # the script or module
    # What to record of a few training steps, or what to collect of the whole run; None to watch it.
    options: RecordOptions | ContextOptions | None,
    output: str | None,  # the file to write; None for one named after the program
    overwrite: bool = False,  # replace an earlier capture instead of keeping it under another name
    ranks: str = "all",  # which ranks of a job to record, see `chosen_ranks`; others run as without stepscope
) -> None:
    """Run `program` to its end in this process and write a capture of it.

    Raises CaptureError before the program starts, if it is missing, the output cannot be written, or the
    job has no such ranks; SystemExit with the program's exit code, unless it came to its end.
    """
    rank = Rank.from_environment()
    chosen = chosen_ranks(ranks, rank)
    session = _session(program, options, output, overwrite) if rank.rank in chosen else None
    run = _RecordedRun(session, rank.rank == min(chosen))
    # Children of a rank of a launcher are left alone.
    if session and isinstance(options, RecordOptions) and rank.world_size == 1:
        plan = ChildPlan(program.command, program.name, options, output, overwrite)
        run.children = ChildProcesses(plan, run.detach)
    program.check()
    if session:
        check_target(session.path, watch_format.is_watched_run if isinstance(session, WatchSession) else None)
    exits.prepare()
    fork_warnings.watch()
    run.attach()
    _unload("click")
    try:
        program.execute()
    except ModuleMissing:
        run.detach()
        raise
    except BaseException as error:
        code = run.finish_after(error)
    else:
        run.finish(Ending(), 0)
        return  # without SystemExit, which Python shows before the prompt of `-i`
    raise SystemExit(code)


class _RecordedRun:
    """A session, if this rank is recorded, and what is said of it at the end, by one rank (`reports`)."""

    def __init__(self, session: AnySession | None, reports: bool) -> None:
        self.session = session
        self.children: ChildProcesses | None = None
        self._reports = reports
        self._messages = Messages()
        self._watches = []
        if session:
            attach = {"torch": session.attach, "jax": session.attach_jax}
            self._watches = [AfterImport(name, partial(_try, session, attach[name])) for name in attach]

    def attach(self) -> None:
        for watch in self._watches:
            watch.install()
        if self.children:
            self.children.install()

    def detach(self) -> None:
        for watch in self._watches:
            watch.remove()
        if isinstance(self.session, Session | WatchSession):
            self.session.detach()

    def finish_after(self, error: BaseException) -> object:
        if isinstance(error, SystemExit):
            told = error.code if isinstance(error.code, int | str | None) else 1  # others may not be shown
            self.finish(Ending(detail=f"exited with {told!r}"), error.code)
            return error.code
        self._explain(error)
        code = show(error)
        if isinstance(error, KeyboardInterrupt):
            is_signal = type(error) is KeyboardInterrupt  # a subclass ends Python with 1
            self.finish(Ending("interrupted", "was interrupted"), 130 if is_signal else code)
            if is_signal and code == 1:
                exits.by_interrupt()
        else:
            self.finish(Ending("raised", f"raised {type(error).__name__}"), code)
        return code

    def _explain(self, error: BaseException) -> None:
        """Say what an out-of-memory error is about, of a watched run, or where `--memory` was asked for."""
        if isinstance(self.session, Session | WatchSession) and not self.session.is_forked:
            with suppress(Exception):
                failed = find_out_of_memory(error)
                text = self.session.run_out_of_memory(failed) if failed else None
                if text:
                    self._messages.say(text)

    def finish(self, ending: Ending, code: object) -> None:
        """Write the capture; whatever happens here, the program ends as it would have ended."""
        if self.session is None:
            return
        if self.session.is_forked:
            exits.leave_forked_child(code)
        if exits.other_threads_go_on():  # Python waits for them, and one of them may train
            atexit.register(self._write_and_tell, self.session, ending)
            terminated = Ending("interrupted", "was terminated")
            exits.before_termination(partial(self._write_and_tell, self.session, terminated))
        else:
            self._write_and_tell(self.session, ending)

    def _write_and_tell(self, session: AnySession, ending: Ending) -> None:
        if session.is_forked:
            return
        try:
            with OwnFunctions():
                children = self.children.captures() if self.children else []
                if isinstance(session, Session):
                    session.finish(ending, only_with_steps=bool(children))
                else:
                    session.finish(ending)
                for line in (*_closing_lines(session, self._reports), *_lines_on_children(children)):
                    self._messages.say(line)
        except KeyboardInterrupt:
            exits.by_interrupt()
        except Exception as error:
            self._messages.say(f"no capture: {type(error).__name__}: {error}")


def _try(session: AnySession, attach: Callable[[], object]) -> None:
    """The program's import goes on, whatever its framework, or a module of that name, lacks."""
    try:
        attach()
    except Exception as error:
        pass_on(error)
        session.failure = f"cannot record: {type(error).__name__}: {error}"


def _unload(package: str) -> None:
    """A script that has a module of this name itself must get its own."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def _session(
    program: Program, options: RecordOptions | ContextOptions | None, output: str | None, overwrite: bool
) -> AnySession:
    if options is None:
        return WatchSession.of_program(program.name, program.command, output)
    run = Run(program.command, options if isinstance(options, RecordOptions) else RecordOptions())
    path = target_path(output, program.name, run.rank)
    if isinstance(options, RecordOptions):
        return Session(run, path, overwrite, RunClock(options.step_every))
    return ContextSession(run, path, options, overwrite=overwrite)


def _closing_lines(session: AnySession, reports: bool) -> Iterator[str]:
    if isinstance(session, WatchSession):
        yield from session.closing_lines() if reports or session.failure else ()
    elif session.failure:
        yield session.failure
    elif session.result and reports:
        file = shown(session.path.parent if session.run.rank.world_size > 1 else session.path)
        yield from (f"warning: {warning}" for warning in session.result.warnings)
        done = [session.result.message, session.file.note]
        has_steps = session.result.steps_recorded or _command(session) != "report"
        empty = "" if has_steps else ", which holds no step"
        done += [f"wrote {file}{empty}"] if session.file.is_written else []
        yield "; ".join(filter(None, done))
        yield from _next(session.result, _command(session), file)


def _lines_on_children(captures: list[Path]) -> Iterator[str]:
    if captures:
        count = f"{len(captures)} process" + ("es" if len(captures) > 1 else "")
        ranked = len(captures) > 1 and captures[0].name.startswith("rank")
        files = [captures[0].parent] if ranked else captures
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        yield f"recorded {count} that the program started; wrote {shown(files[0])}{more}"
        yield f"next: stepscope report {shown(files[0])}"


def _command(session: Session | ContextSession) -> str:
    if isinstance(session, ContextSession):
        return "contexts"
    return "memory" if session.has_memory else "report"


def _next(result: RunResult, command: str, file: str) -> Iterator[str]:
    """The next command to try; nothing if the run failed before it trained."""
    if command == "contexts" or result.outcome == "complete" or result.steps_recorded:
        yield f"next: stepscope {command} {file}"
    elif result.outcome == "no_steps":
        yield f"no step was recorded: {_why_no_steps()}"
    elif result.steps_seen:
        yield f"no step was recorded: {_why_none_complete()}"


def _why_none_complete() -> str:
    if "torch" in sys.modules or "jax" not in sys.modules:
        return "the first step of a run is only observed; recording can start with the second"
    return "recording can start with the fourth step in a row that compiles nothing"


def _why_no_steps() -> str:
    if _LAUNCHERS & {*sys.modules, getattr(sys.modules["__main__"].__spec__, "name", "")}:
        return (
            "the script ran in other processes; let the launcher start stepscope: "
            "torchrun --no-python --nproc-per-node 2 stepscope run script.py"
        )
    if "torch" in sys.modules:
        return (
            "a step ends when an optimizer of torch.optim has stepped or a model is called again; "
            "stepscope run --contexts needs neither"
        )
    if "jax" in sys.modules:
        return (
            "a step ends when a function under jax.jit has returned without compiling; stepscope "
            "report FOLDER opens what jax.profiler.trace(FOLDER) writes"
        )
    return "stepscope run records PyTorch and JAX in the process that it starts"
