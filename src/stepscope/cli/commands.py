"""The `stepscope` command: its subcommands, each loaded only when it is called."""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple

import click

from stepscope.errors import StepscopeError
from stepscope.version import __version__

_INTERRUPTED, _BROKEN_PIPE = 130, 141  # 128 and the number of the signal, as a shell says it


class Entry(NamedTuple):
    """A subcommand: the module of its function, of the same name, and what it is for."""

    module: str
    help: str


# With the help here, `stepscope --help` need load none of them.
COMMANDS = {
    "run": Entry("stepscope.cli.run", "Run a training script and record a few of its steps."),
    "report": Entry("stepscope.cli.report", "Tell where the time of a training step goes."),
    "view": Entry("stepscope.cli.view", "Look at traces in the browser."),
    "whatif": Entry("stepscope.cli.whatif", "Predict what a change would make of the step."),
    "contexts": Entry("stepscope.cli.contexts", "Tell where the time went, by path of calls."),
    "analyze": Entry("stepscope.cli.analyze", "Tell what is wrong with the step, and what to do."),
    "verify": Entry("stepscope.cli.verify", "Make a change; compare it with its prediction."),
    "calibrate": Entry("stepscope.cli.calibrate", "Measure what predictions for a CPU need."),
    "batch": Entry("stepscope.cli.batch", "Predict throughput and memory over the batch size."),
    "lsp": Entry("stepscope.cli.lsp", "Tell an editor what each line costs (language server)."),
    "diff": Entry("stepscope.cli.diff", "Compare two runs: what became slower, what faster."),
    "query": Entry("stepscope.cli.query", "Ask the tables of a trace in SQL."),
    "cache": Entry("stepscope.cli.cache", "Show or clear what is kept on this machine."),
}


class Refusal(click.ClickException):
    """One of stepscope's own errors, as click prints it."""

    def __init__(self, error: StepscopeError) -> None:
        super().__init__(str(error))
        self.exit_code = error.exit_code  # type: ignore[misc]


class Commands(click.Group):
    """Finds subcommands in `COMMANDS` and turns stepscope's errors into one line and a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of the subcommands, in the order of `COMMANDS`."""
        return [name for name, entry in COMMANDS.items() if find_spec(entry.module)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a subcommand; None where there is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(COMMANDS[cmd_name].module), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand that is called."""
        found = super().resolve_command(ctx, args)
        if found[0] != "run":  # which has the script print, and not us
            _print_anything()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the subcommands without loading them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name].help) for name in self.list_commands(ctx)])

    def invoke(self, ctx: click.Context) -> Any:
        """Call a subcommand; what goes wrong by the user's hand ends without a traceback."""
        try:
            result = super().invoke(ctx)
            if sys.stdout:
                sys.stdout.flush()
        except StepscopeError as error:
            raise Refusal(error) from error
        except BrokenPipeError:
            _drop_output()  # whoever read it has had enough
            ctx.exit(_BROKEN_PIPE)
        except OSError as error:
            _flush()
            raise Refusal(StepscopeError(_told(error))) from error
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        return result


def _print_anything() -> None:
    """A letter for which the terminal has no code is shown as `?`: names in a trace hold any.

    Where the shell closed the output (`>&-`), Python has none.
    """
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Python would complain of what it cannot write when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _told(error: OSError) -> str:
    """What the system refused: a full disk, a folder that is gone, no right to write."""
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else what


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stepscope")
def stepscope() -> None:
    """See where a deep-learning training step spends its time.

    FILE is a capture of `stepscope run`, a profiler's trace (.json, .json.gz, .xplane.pb), or a
    folder with one of them for each rank.
    """


def main() -> None:
    """Entry point of the `stepscope` command."""
    stepscope()
