"""`stepscope watch`: a vector of every step of an unmodified script."""

import click

from stepscope.faces.terminal.commands import Deferred
from stepscope.faces.terminal.options import NamedPath, ScriptPath
from stepscope.faces.terminal.run import RunCommand, run_or_exit
from stepscope.record.script_runner import Program


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
    raise Deferred(lambda: run_or_exit(program, None, output, False, "all"))
