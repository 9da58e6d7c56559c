"""`stepscope contexts`: the calling-context tree, and files of it for other tools."""

import json
import re
from pathlib import Path

import click

from stepscope.base.arrays import Mask
from stepscope.errors import TraceError
from stepscope.faces.terminal.contexts_text import print_contexts
from stepscope.faces.terminal.options import FiniteRange, OutputFile, takes_format
from stepscope.faces.terminal.output import printable, say, write_text
from stepscope.faces.terminal.source import takes_trace
from stepscope.facts import contexts as trees
from stepscope.facts.contexts import ContextTree, build_contexts, default_measure, measures
from stepscope.facts.contexts.exports import to_columns, to_folded, to_speedscope
from stepscope.trace.trace import Trace

_LEAST = 1.0  # percent


class _Contexts(click.Command):
    """Rejects options of the table with other formats, before anything is read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        given = [f"--{name}" for name in ("depth", "least") if ctx.params.get(name) is not None]
        if given and ctx.params.get("form") != "table":
            raise click.UsageError(
                f"{' and '.join(given)}: applies to tables only; --format "
                f"{ctx.params['form']} holds all contexts, use --focus and --hide to select some"
            )
        return rest


@click.command(cls=_Contexts)
@takes_trace
@click.option("--bottom-up", is_flag=True, help="Group by function, with callers below each.")
@click.option(
    "--metric",
    metavar="M",
    help="Metric to show: cpu, device, compiled, calls, work, allocated, …, or a metric "
    "of the tree  [default: device, or cpu without a device].",
)
@click.option("--depth", type=click.IntRange(1), help="Number of levels to show.")
@click.option(
    "--least",
    type=FiniteRange(0, 100),
    help=f"Combine rows with a smaller share than this, in percent [default: {_LEAST:g}].",
)
@click.option("--focus", metavar="REGEX", help="Show only paths through nodes whose name matches.")
@click.option("--hide", metavar="REGEX", help="Remove nodes whose name or file matches.")
@click.option("--step", type=int, help="Show one step  [default: all, combined].")
@click.option("--rank", type=int, help="Show one rank  [default: all, combined].")
@takes_format("A table, JSON, a speedscope file, or folded stacks.", "table", "json", "speedscope", "folded")
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
    """Show time by call path: Python line, module, operator, kernel.

    \b
    stepscope contexts train.stepscope --bottom-up
    stepscope contexts trace.json.gz --format speedscope -o trace.speedscope.json
    """
    tree = build_contexts(trace, step=step, rank=rank)
    if not measures(tree):
        raise TraceError(f"nothing was measured in {trace.metadata.source}: it holds no calls")
    by = metric or default_measure(tree)
    tree = _chosen(tree, by, focus, hide, bottom_up)
    if form == "table":
        share = (_LEAST if least is None else least) / 100
        print_contexts(tree, by, depth=depth, least=share, bottom_up=bottom_up, path=output)
        return
    lines = _exported(tree, by if metric else "", form)
    if output is None:
        for line in lines:
            click.echo(printable(line))
    else:
        write_text(Path(output), "\n".join([*lines, ""]))
        say(f"wrote {output}")


def _chosen(tree: ContextTree, by: str, focus: str | None, hide: str | None, bottom_up: bool) -> ContextTree:
    metric = trees.measure(tree, by).metric  # raises at once where there is none
    if hide is not None:
        tree = trees.hide(tree, _named(tree, "--hide", hide, files=True))
    if focus is not None:
        tree = trees.focus(tree, _named(tree, "--focus", focus, files=False))
    if bottom_up:
        calls = ["call_ns"] if metric == "cpu_ns" and tree.has("call_ns") else []
        tree = trees.bottom_up(tree, metric, *calls)
    return tree


def _named(tree: ContextTree, option: str, pattern: str, files: bool) -> Mask:
    try:
        names = re.compile(pattern)
    except re.error as error:
        raise TraceError(f"{option}: {pattern!r} is not a regular expression: {error}") from error
    mask: Mask = tree.nodes.text("name").where(lambda name: bool(names.search(name)))
    if files:
        mask = mask | tree.nodes.text("file").where(lambda name: bool(names.search(name)))
    if not mask.any():
        raise TraceError(f"{option}: {pattern!r} matches no name in {tree.source}")
    return mask


def _exported(tree: ContextTree, by: str, form: str) -> list[str]:
    if form == "json":
        return [json.dumps(to_columns(tree))]
    if form == "folded":
        return list(to_folded(tree, by or default_measure(tree)))
    name = tree.source.replace("\\", "/").rpartition("/")[2]
    return [json.dumps(to_speedscope(tree, [by] if by else measures(tree), name))]
