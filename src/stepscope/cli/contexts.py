"""`stepscope contexts`: the calling-context tree, and files of it for other tools."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.options import FiniteRange, takes_trace
from stepscope.cli.paths import OutputFile
from stepscope.cli.writing import write_text
from stepscope.errors import TraceError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stepscope.contexts import ContextTree
    from stepscope.trace.trace import Trace

FORMATS = ("table", "json", "speedscope", "folded")
_LEAST = 1.0


class _Contexts(click.Command):
    """Refuses what shapes the table where another format is asked for, before anything is read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        rest = super().parse_args(ctx, args)
        given = [f"--{name}" for name in ("depth", "least") if ctx.params.get(name) is not None]
        if given and ctx.params.get("form") != "table":
            raise click.UsageError(
                f"{' and '.join(given)}: only the table is cut; --format {ctx.params['form']} "
                "holds all contexts, use --focus and --hide to choose among them"
            )
        return rest


@click.command(cls=_Contexts)
@takes_trace
@click.option("--bottom-up", is_flag=True, help="Each place once, with its callers below it.")
@click.option("--metric", metavar="M",
              help="What to go by: cpu, device, calls, work, launches, allocated, …, or a metric "
              "of the tree; by default device time, or CPU time without a device.")  # fmt: skip
@click.option("--depth", type=click.IntRange(1), help="How deep the table goes.")
@click.option("--least", type=FiniteRange(0, 100),
              help="The table leaves out what has a smaller share, in per cent "
              f"[default: {_LEAST:g}].")  # fmt: skip
@click.option("--focus", metavar="REGEX", help="Only the paths through nodes of such a name.")
@click.option("--hide", metavar="REGEX", help="Take nodes of such a name or file out of the paths.")
@click.option("--step", type=int, help="One step; by default all of them together.")
@click.option("--rank", type=int, help="One rank; by default all of them together.")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True,
              help="A table, all as JSON, a file for speedscope, or folded stacks.")  # fmt: skip
@click.option("-o", "--output", type=OutputFile(), help="Write to this file.")
def contexts(
    trace: Trace,
    bottom_up: bool,
    metric: str | None,
    depth: int | None,
    least: float | None,
    focus: str | None,
    hide: str | None,
    step: int | None,
    rank: int | None,
    form: str,
    output: str | None,
) -> None:
    """Tell where the time went by path of calls: Python line, module, operator, kernel.

    \b
    stepscope contexts train.stepscope --bottom-up
    stepscope contexts trace.json.gz --format speedscope -o trace.speedscope.json
    """
    from stepscope.contexts import build_contexts, default_measure, measures

    tree = build_contexts(trace, step=step, rank=rank)
    if not measures(tree):
        raise TraceError(f"nothing was measured in {trace.metadata.source}: it holds no calls")
    by = metric or default_measure(tree)
    tree = _chosen(tree, by, focus, hide, bottom_up)
    if form == "table":
        from stepscope.cli.contexts_text import print_contexts

        share = (_LEAST if least is None else least) / 100
        print_contexts(tree, by, depth=depth, least=share, bottom_up=bottom_up, path=output)
        return
    lines = _exported(tree, by if metric else "", form)
    if output is None:
        for line in lines:
            click.echo(line)
    else:
        write_text(Path(output), "\n".join([*lines, ""]))
        click.echo(f"wrote {output}", err=True)


def _chosen(
    tree: ContextTree, by: str, focus: str | None, hide: str | None, bottom_up: bool
) -> ContextTree:
    """The tree without what was not asked for, and upside down if so wanted."""
    from stepscope import contexts as trees

    metric = trees.measure(tree, by).metric  # says so at once where there is none
    if hide is not None:
        tree = trees.hide(tree, _named(tree, "--hide", hide, files=True))
    if focus is not None:
        tree = trees.focus(tree, _named(tree, "--focus", focus, files=False))
    if bottom_up:
        calls = ["call_ns"] if metric == "cpu_ns" and tree.has("call_ns") else []
        tree = trees.bottom_up(tree, metric, *calls)
    return tree


def _named(tree: ContextTree, option: str, pattern: str, files: bool) -> NDArray[np.bool_]:
    """The nodes whose name, or file, a regular expression finds; bool, shape (nodes,)."""
    try:
        names = re.compile(pattern)
    except re.error as error:
        raise TraceError(f"{option}: {pattern!r} is no regular expression: {error}") from error
    found: NDArray[np.bool_] = tree.nodes.text("name").where(lambda name: bool(names.search(name)))
    if files:
        found = found | tree.nodes.text("file").where(lambda name: bool(names.search(name)))
    if not found.any():
        raise TraceError(f"{option}: {pattern!r} is found in no name of {tree.source}")
    return found


def _exported(tree: ContextTree, by: str, form: str) -> list[str]:
    """The lines of a file; by one measure, or else by all that there are where it can hold them."""
    from stepscope.contexts import default_measure, measures
    from stepscope.contexts.columns import to_columns
    from stepscope.contexts.folded import to_folded
    from stepscope.contexts.speedscope import to_speedscope

    if form == "json":
        return [json.dumps(to_columns(tree))]
    if form == "folded":
        return list(to_folded(tree, by or default_measure(tree)))
    name = tree.source.replace("\\", "/").rpartition("/")[2]
    return [json.dumps(to_speedscope(tree, [by] if by else measures(tree), name))]
