"""`stepscope whatif`: what a change would make of the step, before anyone makes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.options import takes_trace

if TYPE_CHECKING:
    from stepscope.graph import Graph
    from stepscope.trace.trace import Trace
    from stepscope.whatif import Prediction


_LEAST_MS = 0.0005  # less would be shown as 0.000


class _Whatif(click.Command):
    """Lists the changes without asking for a FILE, and refuses what cannot be asked together."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        if "--list" in args:
            _print_list("--json" in args)
            ctx.exit()
        rest = super().parse_args(ctx, args)
        if ctx.params.get("ranking") and ctx.params.get("changes"):
            raise click.UsageError("--rank tries every change on its own; leave out CHANGE, or it")
        return rest


@click.command(cls=_Whatif)
@takes_trace
@click.argument("changes", nargs=-1, metavar="[CHANGE[:KEY=VALUE,…]]…")
@click.option("--list", is_flag=True, expose_value=False,
              help="List the changes and their parameters; needs no FILE.")  # fmt: skip
@click.option("--rank", "ranking", is_flag=True, help="Try every change, and list them by gain.")
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("--step", type=int, help="One step; by default the longest row of consecutive ones.")
@click.option("--of-rank", type=int, help="One rank of a folder; by default all of them together.")
def whatif(
    trace: Trace,
    changes: tuple[str, ...],
    ranking: bool,
    as_json: bool,
    step: int | None,
    of_rank: int | None,
) -> None:
    """Predict what changes would make of the step, applied in the order given.

    For example: amp, bandwidth:factor=2, scale:select=stage=backward+kind=gemm,factor=0.5.
    """
    graph = _graph(trace, step, of_rank)
    if ranking:
        _print_ranking(graph, as_json)
        return
    _print_prediction(_predicted(graph, changes), as_json)


def _graph(trace: Trace, step: int | None, of_rank: int | None) -> Graph:
    from stepscope.graph import build_graph, build_ranks

    steps = None if step is None else (step, step)
    return (
        build_graph(trace, of_rank, steps)
        if of_rank is not None
        else build_ranks(trace, steps=steps)
    )


def _predicted(graph: Graph, changes: tuple[str, ...]) -> Prediction:
    from stepscope.whatif import CHANGES, parse_request, predict

    return predict(graph, [parse_request(text, CHANGES) for text in changes])


def _print_list(as_json: bool) -> None:
    from stepscope.whatif import CHANGES

    rows = [(one.name, [*one.parameters], one.summary) for one in CHANGES.values()]
    if as_json:
        keys = ("name", "parameters", "summary")
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    for name, parameters, summary in rows:
        call = f"{name}:{','.join(f'{key}=…' for key in parameters)}" if parameters else name
        click.echo(f"{call}\n    {summary}")


def _print_ranking(graph: Graph, as_json: bool) -> None:
    from stepscope.whatif.ranking import rank_changes

    gains, reasons = rank_changes(graph)
    if as_json:
        echo_json({"changes": [one.to_json() for one in gains], "not_applicable": reasons})
        return
    for one in gains:
        click.echo(
            f"{one.speedup:6.2f}x  {one.predicted_step_ms:10.3f} ms  {' '.join(one.changes)}"
            f"{_doubt(one)}"
        )
    for name, reason in reasons.items():
        click.echo(f"      –                 {name}: {reason}")


def _print_prediction(answer: Prediction, as_json: bool) -> None:
    if as_json:
        echo_json(answer.to_json())
        return
    for line in _lines(answer):
        click.echo(line)


def _lines(answer: Prediction) -> list[str]:
    low, high = answer.range
    lines = [
        f"measured   {answer.measured_step_ms:10.3f} ms a step",
        f"replayed   {answer.replayed_step_ms:10.3f} ms, {answer.replay_error:+.2%}",
        f"predicted  {answer.predicted_step_ms:10.3f} ms, {answer.speedup:.2f}x "
        f"({low:.3f} to {high:.3f} ms)  {' '.join(answer.changes) or 'no change'}{_doubt(answer)}",
        "",
        f"{'ms a step':<22}{'before':>12}{'after':>12}",
    ]
    before, after = answer.breakdown["before"], answer.breakdown["after"]
    labels = {"cpu_only_ms": "only CPU", "device_only_ms": "only device",
              "parallel_ms": "both", "idle_ms": "neither"}  # fmt: skip
    lines += [_row(text, getattr(before, key), getattr(after, key)) for key, text in labels.items()]
    lines += ["", "critical path"]
    stages = [answer.critical_path[side]["stages"] for side in ("before", "after")]
    names = dict.fromkeys(name for part in stages for name in part)
    rows = [(name, stages[0].get(name, 0.0), stages[1].get(name, 0.0)) for name in names]
    lines += [_row(*row) for row in rows if max(row[1:]) >= _LEAST_MS]
    return [*lines, "", "assumed", *(f"  {text}" for text in answer.assumptions)]


def _doubt(answer: Prediction) -> str:
    return (
        "" if answer.is_certain or not answer.changes else "  (the range holds the step as it is)"
    )


def _row(label: str, before: float, after: float) -> str:
    return f"  {label:<20}{before:>12.3f}{after:>12.3f}"
