"""`stepscope diff`: what changed between two runs, and what is only noise."""

import sys
from dataclasses import replace
from typing import Any

import click

from stepscope.errors import TraceError
from stepscope.faces.terminal.diff_text import print_comparison
from stepscope.faces.terminal.options import FiniteRange, NamedPath, opens_traces
from stepscope.faces.terminal.output import echo_json, say, terminal
from stepscope.faces.terminal.source import MEMORY_FORMATS, input_file
from stepscope.models.diff import RunComparison, compare, explain
from stepscope.models.memory.device_facts import holds_memory
from stepscope.models.memory.memory_text import MemoryComparison, compare_memory, print_memory_comparison
from stepscope.trace.trace import Trace


@click.command()
@click.argument("before", metavar="A", type=NamedPath())
@click.argument("after", metavar="B", type=NamedPath())
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--fail-above",
    metavar="PERCENT",
    type=FiniteRange(0),
    help="Exit with code 1 if B is slower than A by more than this beyond noise.",
)
@click.option("--rank", type=int, help="Rank to compare; the default is the first.")
@click.option("--to-rank", type=int, help="Rank of B, if it differs.")
@click.option(
    "--rows", type=click.IntRange(0), default=8, show_default=True, help="Changes of each kind to list."
)
@opens_traces
def diff(
    before: str,
    after: str,
    as_json: bool,
    fail_above: float | None,
    rank: int | None,
    to_rank: int | None,
    rows: int,
    **how: Any,
) -> None:
    """Compare the steps of trace B with those of trace A.

    Matches stages, modules, operators and kernels by name and compares their medians over the
    steps, largest change first. Changes within step-to-step noise are marked as noise.

    \b
    stepscope diff before.stepscope after.stepscope
    stepscope diff baseline.json.gz new.json.gz --fail-above 5

    Of two memory snapshots, and of captures made with `stepscope run --memory`, it also says what
    grew at the peak, by kind, module and line.
    """
    file = input_file(before, rank, how)
    other = replace(file, path=after, rank=rank if to_rank is None else to_rank)
    sides = [file.load(memory=True), other.load(memory=True)]
    only_memory = all(trace.metadata.format in MEMORY_FORMATS for trace in sides)
    if only_memory and fail_above is not None:
        raise click.UsageError("--fail-above compares steps, and files of memory alone have none")
    found = None if only_memory else compare(*sides, rank=rank, to_rank=to_rank)
    memory = _compared_memory(sides)
    if as_json:
        steps = found.to_json() | {"explanation": explain(found)} if found else {}
        echo_json(steps if memory is None else steps | {"memory": memory})
    else:
        if found:
            print_comparison(terminal(), found, rows)
        for device in memory or ():
            print_memory_comparison(terminal(), device, rows)
    if found and fail_above is not None:
        _apply_limit(found, fail_above)


def _compared_memory(sides: list[Trace]) -> list[MemoryComparison] | None:
    """None if a side holds no allocations, or those of several ranks, which is said on stderr."""
    if not all(map(holds_memory, sides)):
        return None
    try:
        return compare_memory(*sides)
    except TraceError as error:
        say(f"! memory is not compared: {error}")
        return None


def _apply_limit(found: RunComparison, limit: float) -> None:
    """Fail if the whole interval of the change is above the limit; say so if only a part of it is."""
    change = (found.step.ratio or 1.0) - 1
    low, high = ((value - 1) * 100 for value in found.interval or (change + 1, change + 1))
    text = f"step time changed by {change:+.1%} (--fail-above {limit:g})"
    if found.interval is None:
        text += ", but one side has only one step, so this may be noise" if high > limit else ""
    else:
        text += f", by at least {low:+.1f}% and at most {high:+.1f}%, each at 95% confidence"
    loaded = found.step.verdict == "unclear" and (found.before.load or found.after.load)
    if high <= limit:
        say(f"passed: {text}")
    elif low > limit and not loaded:
        say(f"failed: {text}")
        sys.exit(1)
    else:
        why = "other processes may have caused it" if loaded else "within step-to-step noise"
        say(f"cannot tell: {text}: {why}; record more steps to be sure")
