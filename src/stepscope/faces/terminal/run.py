"""`stepscope run` and `watch`: record a few steps of an unmodified script, or watch all of them."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
from click.core import ParameterSource

from stepscope.errors import CaptureError
from stepscope.faces.terminal.commands import Deferred, call
from stepscope.faces.terminal.options import Command, NamedPath, ScriptCommand, ScriptPath, at_least_one
from stepscope.record.contexts import ContextOptions, read_drivers
from stepscope.record.options import Rank, RecordOptions
from stepscope.record.run import run_program
from stepscope.record.script_runner import Program

_OF_STEPS = ("warmup", "steps", "step_every", "from_optimizer", "recorder_memory", "stack", "shapes")
_OF_CONTEXTS = ("native", "sample", "sample_real", "perf", "stalls", "drivers")


class RunCommand(ScriptCommand):
    """Runs its script when the command line has been left, also where it is called by itself."""

    def main(self, *args: Any, **options: Any) -> Any:
        call(super().main, *args, **options)


def _sampling(name: str, help: str) -> Callable[[Command], Command]:
    return click.option(name, type=click.IntRange(0, 10_000), default=0, metavar="HZ", help=help)


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@at_least_one("--warmup", 5, "Steps to skip before recording.")
@at_least_one("--steps", 3, "Steps to record.")
@at_least_one("--step-every", 1, "Count N optimizer steps as one step.", metavar="N", show_default=False)
@at_least_one(
    "--from-optimizer",
    1,
    "Skip steps of optimizers before the Nth, such as those of earlier trainings.",
    metavar="N",
    show_default=False,
)
@click.option(
    "--recorder-memory",
    type=click.IntRange(min=0),
    default=0,
    metavar="MB",
    help="Memory for recorded events; fewer steps are recorded if they need more "
    "[default: half of what is available].",
)
@click.option("--memory", is_flag=True, help="Also record every allocation.")
@click.option("--stack", is_flag=True, help="Also record Python stacks (costly).")
@click.option(
    "--shapes/--no-shapes",
    default=None,
    help="Record the shapes of operator inputs [default: yes; no in a job of several ranks].",
)
@click.option(
    "--ranks",
    default="all",
    metavar="LIST",
    help="Ranks to record, such as 0,8-15,first-of-node,last [default: all].",
)
@click.option("--contexts", is_flag=True, help="Collect the calling contexts of the whole run instead.")
@click.option("--native", is_flag=True, help="With --contexts: also C++ frames.")
@_sampling("--sample", "With --contexts: samples per second of each thread's CPU time.")
@_sampling("--sample-real", "With --contexts: samples per second of elapsed time.")
@click.option("--perf", is_flag=True, help="With --contexts: hardware counters with each sample.")
@click.option("--stalls", is_flag=True, help="With --contexts: sample why GPU instructions stall.")
@click.option(
    "--drivers",
    metavar="FILE",
    type=NamedPath(),
    help="With --contexts: also the calls of functions that FILE names, in other devices' libraries.",
)
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=NamedPath(),
    help="Capture file to write [default: SCRIPT.stepscope].",
)
@click.option(
    "--overwrite", is_flag=True, help="Replace an earlier capture; default: keep it as NAME.1.stepscope."
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.argument("script", type=ScriptPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str,
    arguments: tuple[str, ...],
    as_module: bool,
    output: str | None,
    overwrite: bool,
    contexts: bool,
    ranks: str,
    shapes: bool | None,
    **options: Any,
) -> None:
    """Run an unmodified SCRIPT and record a few of its training steps.

    The script keeps its arguments, input, output and exit code. Steps are detected from its
    optimizers, or else from the loop that calls its model.
    """
    lean = Rank.from_environment().world_size > 1
    if shapes is None:
        shapes = options["memory"] or not lean  # without shapes no operator's tensors are known
    of_contexts = {name: options.pop(name) for name in _OF_CONTEXTS}
    what: RecordOptions | ContextOptions = RecordOptions(**options, shapes=shapes)
    if wrong := _given(_OF_STEPS if contexts else _OF_CONTEXTS):
        how = "cannot be combined with" if contexts else "only work with"
        raise click.UsageError(f"{', '.join(wrong)} {how} --contexts, which collects the whole run")
    if contexts:
        functions = read_drivers(of_contexts.pop("drivers"))
        what = ContextOptions(**of_contexts, memory=options["memory"], drivers=functions)
    program = Program(script, arguments, as_module)
    raise Deferred(lambda: _run_or_exit(program, what, output, overwrite, ranks))


def _given(names: Sequence[str]) -> list[str]:
    """Those options of the command that its command line has."""
    context, given = click.get_current_context(), ParameterSource.COMMANDLINE
    options = (one for one in context.command.params if one.name in names)
    return [one.opts[0] for one in options if context.get_parameter_source(one.name or "") is given]


@click.command(cls=RunCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o", "--output", metavar="FILE", type=NamedPath(), help="File to write [default: SCRIPT.watch]."
)
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is a module name, as in python -m.")
@click.argument("script", type=ScriptPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def watch(script: str, arguments: tuple[str, ...], as_module: bool, output: str | None) -> None:
    """Run an unmodified SCRIPT and watch all of its training steps.

    A file of constant size (at most 20 MB) gets a short vector of each step. `stepscope FILE` shows what the
    run lost time to, also while it runs.
    """
    program = Program(script, arguments, as_module)
    raise Deferred(lambda: _run_or_exit(program, None, output, False, "all"))


def _run_or_exit(
    program: Program,
    options: RecordOptions | ContextOptions | None,
    output: str | None,
    overwrite: bool,
    ranks: str,
) -> None:
    try:
        run_program(program, options, output, overwrite, ranks)
    except SystemExit as error:
        if error.code == 2:  # as argparse ends for an option that it does not know
            command: Any = run if options else watch
            for name in command.misplaced(program.target, program.arguments):
                print(f"stepscope: put {name} before {program.target} if it is stepscope's", file=sys.stderr)
        raise
    except (CaptureError, OSError) as error:  # before the script runs
        if isinstance(error, OSError):
            error = CaptureError(f"{error.filename}: {error.strerror}; choose another file with -o")
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
