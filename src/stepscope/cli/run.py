"""`stepscope run`: record a few steps of an unmodified script."""

from __future__ import annotations

import sys
from typing import Any

import click

from stepscope.capture.contexts.options import ContextOptions
from stepscope.capture.launch import run_program
from stepscope.capture.options import Options
from stepscope.capture.program import Program
from stepscope.cli.paths import NamedPath
from stepscope.errors import CaptureError


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--warmup", type=click.IntRange(min=1), default=5, show_default=True,
              help="Steps to let pass first.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True,
              help="Steps to record.")  # fmt: skip
@click.option("--memory", is_flag=True, help="Also record every allocation.")
@click.option("--stack", is_flag=True, help="Also record Python stacks (costly).")
@click.option("--shapes/--no-shapes", default=True, show_default=True,
              help="Record the shapes of operator inputs.")  # fmt: skip
@click.option("--contexts", is_flag=True,
              help="Collect the calling contexts of the whole run instead.")  # fmt: skip
@click.option("--native", is_flag=True, help="With --contexts: also C++ frames.")
@click.option("--sample", type=click.IntRange(0, 10_000), default=0, metavar="HZ",
              help="With --contexts: samples a second of each thread's CPU time.")  # fmt: skip
@click.option("--sample-real", type=click.IntRange(0, 10_000), default=0, metavar="HZ",
              help="With --contexts: samples a second of elapsed time.")  # fmt: skip
@click.option("--perf", is_flag=True,
              help="With --contexts: hardware counters with each sample.")  # fmt: skip
@click.option("--stalls", is_flag=True,
              help="With --contexts: what instructions on the GPU wait for.")  # fmt: skip
@click.option("-o", "--output", metavar="FILE", type=NamedPath(),
              help="Where to write [default: SCRIPT.stepscope].")  # fmt: skip
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("script", type=NamedPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def run(
    script: str,
    arguments: tuple[str, ...],
    as_module: bool,
    output: str | None,
    contexts: bool,
    native: bool,
    sample: int,
    sample_real: int,
    perf: bool,
    stalls: bool,
    **options: Any,
) -> None:
    """Run a SCRIPT, unmodified, and record a few of its steps.

    The script gets its own arguments, input, output and exit code. Steps are found from its
    optimizers, or else from the loop that calls its model.
    """
    what: Options | ContextOptions = Options(**options)
    if contexts:
        what = ContextOptions(
            native=native, memory=options["memory"], sample=sample, sample_real=sample_real,
            perf=perf, stalls=stalls,
        )  # fmt: skip
    elif native or sample or sample_real or perf or stalls:
        raise click.UsageError(
            "--native, --sample, --sample-real, --perf and --stalls need --contexts"
        )
    try:
        run_program(Program(script, arguments, as_module), what, output)
    except CaptureError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(error.exit_code)
