"""`stepscope diff`: what changed between two runs, and whether one can tell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.options import FiniteRange, tell_of_ranks_without_steps
from stepscope.cli.paths import NamedPath
from stepscope.cli.progress import progress_bar
from stepscope.cli.terminal import terminal

if TYPE_CHECKING:
    from stepscope.diff import Comparison
    from stepscope.trace.trace import Trace


@click.command()
@click.argument("before", metavar="A", type=NamedPath())
@click.argument("after", metavar="B", type=NamedPath())
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("--fail-above", metavar="PERCENT", type=FiniteRange(0),
              help="Exit with 1 if B's step is slower than A's by more than this.")  # fmt: skip
@click.option("--rank", type=int, help="Whose steps, in a folder of ranks; by default the first.")
@click.option("--to-rank", type=int, help="The rank of B, where it is another one.")
@click.option("--rows", type=click.IntRange(0), default=8, show_default=True,
              help="How many changes of each kind to list.")  # fmt: skip
@click.option("--model", metavar="JSON", type=NamedPath(),
              help="The model tree, for traces that name no module themselves.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Neither use nor keep earlier results.")
@click.pass_context
def diff(
    context: click.Context,
    before: str,
    after: str,
    as_json: bool,
    fail_above: float | None,
    rank: int | None,
    to_rank: int | None,
    rows: int,
    model: str | None,
    no_cache: bool,
) -> None:
    """Compare the steps of trace B with those of trace A.

    Stages, modules, operators and kernels are compared by name, by their medians over the steps,
    the biggest changes first. A change within what the steps vary by is said to be that.

    \b
    stepscope diff before.stepscope after.stepscope
    stepscope diff baseline.json.gz new.json.gz --fail-above 5
    """
    from stepscope.diff import compare

    sides = [_opened(path, model, not no_cache) for path in (before, after)]
    found = compare(*sides, rank=rank, to_rank=to_rank)
    if as_json:
        echo_json(found.to_json())
    else:
        from stepscope.cli.diff_text import print_comparison

        print_comparison(terminal(), found, rows)
    if fail_above is not None:
        _judge(context, found, fail_above)


def _opened(path: str, model: str | None, cache: bool) -> Trace:
    from stepscope.opening import open

    with progress_bar(f"reading {Path(path).name}") as progress:
        trace = open(path, model=model, cache=cache, progress=progress)
    tell_of_ranks_without_steps(trace)
    return trace


def _judge(context: click.Context, found: Comparison, limit: float) -> None:
    """Exit with 1 if the step is slower by more than `limit` per cent and not by chance."""
    ratio, verdict = found.step.ratio or 1.0, found.step.verdict
    above = (ratio - 1) * 100 > limit
    what = f"the step takes {ratio - 1:+.1%} (--fail-above {limit:g})"
    if not above:
        click.echo(f"passed: {what}", err=True)
    elif verdict == "unclear":
        click.echo(f"passed: {what}, but that is within what the steps vary by; "
                   "record more steps to be sure", err=True)  # fmt: skip
    else:
        of_one = ", though one side has only one step, which may be chance"
        click.echo(f"failed: {what}{of_one if verdict == 'one_step' else ''}", err=True)
        context.exit(1)
