"""The `stepscope` command: its subcommands, each loaded only when it is called."""

import errno
import math
import os
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import click

from stepscope.base.plugins import named_plugin, plugin_names
from stepscope.errors import StepscopeError, meant, name_hint, one_line
from stepscope.faces.terminal.output import SIMILAR, printable
from stepscope.version import __version__

_INTERRUPTED, _BROKEN_PIPE = 130, 141  # 128 and the number of the signal, as a shell says it


class Deferred(BaseException):
    """Leaves the command line; `action` is called afterwards."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__()
        self.action = action


def call(command: Callable[..., Any], *args: Any, **options: Any) -> None:
    try:
        command(*args, **options)
        return
    except Deferred as deferred:
        action = deferred.action
    action()


# What each command does, said here so that `stepscope --help` loads none of them.
GROUPS = {
    "Record": {
        "run": "Run a training script and record a few of its steps.",
        "watch": "Run a training script and watch all of its steps.",
        "status": "Show what watched runs are doing.",
        "record": "Record a few steps of a watched run.",
        "export": "Export the times of watched runs to Prometheus or OTLP.",
    },
    "What is slow?": {
        "report": "Show where the time of a training step goes.",
        "view": "Open traces in the browser.",
    },
    "Why is it slow?": {
        "analyze": "List what slows the step, and how to fix it.",
        "contexts": "Show time by call path.",
        "ranks": "Find the slow ranks of a job.",
        "diff": "Compare two runs.",
    },
    "What would a fix buy?": {
        "whatif": "Predict how a change would affect step time.",
        "verify": "Apply a change and compare with its prediction.",
        "calibrate": "Benchmark this machine for predictions.",
    },
    "What fills the memory?": {"memory": "Show what fills and fragments device memory."},
    "Which batch size?": {
        "batch": "Predict throughput and memory by batch size.",
        "fits": "Predict whether a script fits a GPU that is not here.",
        "lsp": "Start the language server for editors.",
    },
    "For assistants": {
        "explain": "Summarize a step as Markdown.",
        "mcp": "Start the MCP server for coding assistants.",
    },
    "Data": {
        "query": "Run SQL on the tables of a trace.",
        "redact": "Replace what identifies you, to share a trace.",
        "cache": "Show or clear cached data.",
    },
}
COMMANDS = [name for group in GROUPS.values() for name in group]
_FILE_OF = {"watch": "run", "record": "status", "fits": "batch", "lsp": "mcp"}  # where it is another one


class Refusal(click.ClickException):
    """One of stepscope's own errors, as click prints it."""

    def __init__(self, error: StepscopeError) -> None:
        super().__init__(printable(str(error)))
        self.exit_code = error.exit_code  # type: ignore[misc]


class Commands(click.Group):
    """Finds subcommands in `COMMANDS` and turns stepscope's errors into one line and a code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return named_plugin("commands", cmd_name, click.Command)
        file = _FILE_OF.get(cmd_name, cmd_name)
        return getattr(import_module(f"stepscope.faces.terminal.{file}"), cmd_name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the subcommand; a trace alone means `report`."""
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            args = _report_or_hint(args)
        name, command, rest = super().resolve_command(ctx, args)
        if name not in ("run", "watch"):  # there the script prints, not stepscope
            _print_anything()
        if name and command:
            ctx.default_map = {name: project_options(command, Path.cwd())}
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS)) + 2
        for question, group in GROUPS.items():
            formatter.write(f"\n{question}\n")
            formatter.indent()
            formatter.write_dl([(name.ljust(width), text) for name, text in group.items()])
            formatter.dedent()
        if names := [name for name in plugin_names("commands") if name not in COMMANDS]:
            formatter.write("\nExtensions\n" + "".join(f"  {name}\n" for name in names))

    def main(self, *args: Any, **options: Any) -> Any:
        """Run the command line; `--help` and `--version` print before `invoke`."""
        try:
            return super().main(*args, **options)
        except OSError as error:
            _drop_output()
            with suppress(OSError):  # stderr may be full, too
                Refusal(StepscopeError(_reason(error))).show()
            sys.exit(StepscopeError.exit_code)

    def invoke(self, ctx: click.Context) -> Any:
        """Call a subcommand; errors that users can cause end without a traceback."""
        try:
            result = super().invoke(ctx)
            if sys.stdout:
                sys.stdout.flush()
        except StepscopeError as error:
            raise Refusal(error) from error
        except BrokenPipeError:
            _drop_output()  # the reader closed the pipe
            ctx.exit(_BROKEN_PIPE)
        except OSError as error:
            _flush()
            raise Refusal(StepscopeError(_reason(error))) from error
        except KeyboardInterrupt:
            ctx.exit(_INTERRUPTED)
        except click.ClickException as error:
            error.message = printable(error.message)  # type: ignore[misc]
            raise
        except (click.exceptions.Exit, click.Abort):
            raise
        except Exception as error:
            if ctx.invoked_subcommand in ("run", "watch"):
                raise  # an error of the user's script
            _flush()
            from stepscope.faces.terminal.crash_report import crash_message

            raise Refusal(StepscopeError(crash_message(error))) from error
        return result


def _report_or_hint(args: list[str]) -> list[str]:
    """`report` for a trace, a command of another package, or an error that says what was meant."""
    word = args[0]
    if word.endswith(".py"):
        raise click.UsageError(
            f"{word} is a script, not a command; to record it: stepscope run {shlex.join(args)}"
        )
    if Path(word).exists():
        return ["report", *args]
    if word in plugin_names("commands"):
        return args
    if hint := meant(word, COMMANDS):
        raise click.UsageError(f"no command '{word}'; {hint}")
    raise click.UsageError(f"'{word}' is neither a command nor a file; see stepscope --help")


def _print_anything() -> None:
    """Show characters that the terminal cannot encode as similar ones: names in a trace hold any.

    Where the shell closed the output (`>&-`), Python has none.
    """
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - until the end
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors=SIMILAR)


def _flush() -> None:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()


def _drop_output() -> None:
    """Discard what is left, or Python reports an error when it flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def _reason(error: OSError) -> str:
    what = error.strerror or str(error)
    if error.errno == errno.ENOSPC and not error.filename:
        return f"the output cannot be written: {what}"
    return f"{error.filename}: {what}" if error.filename else what


# -- options of a project: `[COMMAND]` in `stepscope.toml`, `[tool.stepscope.COMMAND]` in `pyproject.toml`


_PROJECT_FILES = ("stepscope.toml", "pyproject.toml")  # the first one counts
# Who clones a project has not read it: such a file starts nothing, names no file and changes none.
_WITH_DEFAULTS = ("run", "report", "analyze", "contexts", "diff", "ranks", "memory")
_VALUES = (bool, int, float)
# tomllib takes the square of a dotted key's length, 1 to 3 s for this.
_MOST_LETTERS = 1 << 15  # chosen: ten times the usual file
_MOST_SEARCHED = 1 << 20  # letters more; chosen: larger than the pyproject.toml of any project


def project_options(command: click.Command, folder: Path) -> dict[str, Any]:
    """Defaults of a command's switches and numbers, from the nearest file in this folder or around it; raises
    StepscopeError if the file is not TOML, or has an option that the command does not have or that only its
    user may set."""
    if command.name not in _WITH_DEFAULTS:
        return {}
    for path in (around / name for around in (folder, *folder.parents) for name in _PROJECT_FILES):
        is_file = os.path.isfile(path)  # noqa: PTH113 - that of a Path raises where only its owner may look
        if is_file and (options := _section(path, command.name or "")) is not None:
            return _checked(options, command, path)
    return {}


def _section(path: Path, command: str) -> dict[str, Any] | None:
    """The options of a command; None if the file says nothing of stepscope."""
    with path.open(encoding="utf-8", errors="replace") as file:
        text = file.read(_MOST_LETTERS + 1)
        if path.name == "pyproject.toml" and "tool.stepscope" not in text + file.read(_MOST_SEARCHED):
            return None
    if len(text) > _MOST_LETTERS:
        raise StepscopeError(
            f"{path} has over {_MOST_LETTERS:,} letters; give the options in a shorter stepscope.toml"
        )
    try:
        import tomllib

        content: dict[str, Any] = tomllib.loads(text)
    except ImportError:
        raise StepscopeError(f"{path}: options of a project need Python 3.11") from None
    except (ValueError, RecursionError) as error:
        raise StepscopeError(f"{path} is not TOML: {one_line(error)}") from None
    for key in () if path.name == "stepscope.toml" else ("tool", "stepscope"):
        content = content.get(key, {})
        if not isinstance(content, dict):
            return {}
    if unknown := [name for name in content if name not in _WITH_DEFAULTS]:
        hint = name_hint(unknown[0], _WITH_DEFAULTS)
        raise StepscopeError(f"{path}: no command {unknown[0]} has options here; {hint}")
    options = content.get(command, {})
    return options if isinstance(options, dict) else {}


def _checked(options: dict[str, Any], command: click.Command, path: Path) -> dict[str, Any]:
    """The options by the names of their parameters."""
    known = {
        word.lstrip("-"): option
        for option in command.params
        if isinstance(option, click.Option)
        for word in (*option.opts, *option.secondary_opts)
    }
    checked: dict[str, Any] = {}
    for word, value in options.items():
        if word not in known:
            hint = name_hint(word, known)
            raise StepscopeError(f"{path}: stepscope {command.name} has no option --{word}; {hint}")
        if not isinstance(value, _VALUES) or abs(value) == math.inf:
            raise StepscopeError(
                f"{path}: --{word} can only be set on the command line; here, switches and numbers"
            )
        option = known[word]
        if isinstance(option.flag_value, str):  # short for another option with that value
            checked |= {str(option.name): option.flag_value} if value else {}
        else:
            checked[str(option.name)] = not value if f"--{word}" in option.secondary_opts else value
    return checked


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stepscope")
def stepscope() -> None:
    """Find out why a deep-learning training step is slow, and what a fix would buy.

    \b
    stepscope run train.py          record a few steps of your script
    stepscope train.stepscope       show where their time goes (short for report)

    FILE is a capture of `stepscope run`, a PyTorch trace (.json, .json.gz), a profile of JAX or
    TensorFlow (.xplane.pb), an Nsight Systems recording (exported as .sqlite), a Perfetto trace
    (.pftrace), any other Chrome trace, or a folder with one file per rank.
    """


def main() -> None:
    """Entry point of the `stepscope` command."""
    call(stepscope)
