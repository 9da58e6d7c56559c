"""`stepscope whatif`: predict how changes would affect step time, before anyone makes them."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.cli.job_whatif import answers, print_job
from stepscope.cli.json_output import echo_json
from stepscope.cli.many_ranks import many_ranks, slowest_alone
from stepscope.cli.options import (
    TraceFile,
    ranks_without_steps,
    say_ranks_without_steps,
    takes_file,
)

if TYPE_CHECKING:
    from stepscope.graph import Graph
    from stepscope.whatif import Prediction
    from stepscope.whatif.ranking import Ranking


_LEAST_MS = 0.0005  # shorter times would be shown as 0.000


class _Whatif(click.Command):
    """Lists the changes without a FILE, and refuses options that contradict each other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        if "--list" in args:
            _print_list("--json" in args)
            ctx.exit()
        _refuse_rank_without_number(args)
        rest = super().parse_args(ctx, args)
        if ctx.params.get("try_all") and ctx.params.get("changes"):
            raise click.UsageError("--all tries every change on its own; leave out CHANGE, or it")
        if ctx.params.get("fits") and (ctx.params.get("try_all") or ctx.params.get("changes")):
            raise click.UsageError("--fits chooses the changes itself; leave out CHANGE and --all")
        return rest


def _refuse_rank_without_number(args: list[str]) -> None:
    """`--rank` alone once ranked the changes."""
    for word, following in zip(args, [*args[1:], ""], strict=True):
        if word == "--rank" and not following.isdecimal():
            raise click.UsageError("--rank needs the number of a process rank, such as --rank 0; "
                                   "to try every change, use --all")  # fmt: skip


@click.command(cls=_Whatif)
@takes_file
@click.argument("changes", nargs=-1, metavar="[CHANGE[:KEY=VALUE,…]]…")
@click.option("--list", is_flag=True, expose_value=False,
              help="List the changes and their parameters; needs no FILE.")  # fmt: skip
@click.option("--all", "try_all", is_flag=True, help="Try every change, and list them by gain.")
@click.option("--fits", metavar="24GB|DEVICE",
              help="List the changes, cheapest in time first, that make the step fit.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--step", type=int,
              help="One step; by default the longest run of consecutive steps.")  # fmt: skip
@click.option("--device", metavar="NAME",
              help="The GPU, such as H100, for a trace that does not name it.")  # fmt: skip
@click.option("--rank", type=int, help="One process rank; by default all ranks together.")
def whatif(
    file: TraceFile,
    changes: tuple[str, ...],
    try_all: bool,
    fits: str | None,
    as_json: bool,
    step: int | None,
    device: str | None,
    rank: int | None,
) -> None:
    """Predict how changes would affect step time, applied in the order given.

    For example: amp, bandwidth:factor=2, scale:select=stage=backward+kind=gemm,factor=0.5.
    """
    many = many_ranks(Path(file.path), file.cache) if rank is None else None
    if many and not try_all and fits is None and step is None and answers(changes):
        print_job(many, changes, as_json)
        return
    if many:
        file = slowest_alone(file, many)
    if try_all and device is None:
        from stepscope.cli.kept_whatifs import ranking_of_file

        found = ranking_of_file(file, step, rank)
        say_ranks_without_steps(file.path, found.ranks_without_steps)
        _print_all(found.ranking, as_json)
        return
    graph = _graph(file, step, rank, device)
    if try_all:
        from stepscope.whatif.ranking import rank_changes

        _print_all(rank_changes(graph), as_json)
    elif fits is not None:
        _print_fits(graph, fits, as_json)
    else:
        _print_prediction(_predicted(graph, changes), as_json)


def _graph(file: TraceFile, step: int | None, rank: int | None, device: str | None) -> Graph:
    from stepscope.annotate.steps.step_table import coverage_note
    from stepscope.roofline import with_device
    from stepscope.whatif.ranking import graph_of

    trace = file.open()
    say_ranks_without_steps(file.path, ranks_without_steps(trace))
    if note := coverage_note(trace, trace.metadata.ranks[0] if rank is None else rank):
        click.echo(f"! {note}", err=True)
    return graph_of(trace if device is None else with_device(trace, device), step, rank)


def _predicted(graph: Graph, changes: tuple[str, ...]) -> Prediction:
    from stepscope.whatif import CHANGES, parse_request, predict

    return predict(graph, [parse_request(text, CHANGES) for text in changes])


def _print_list(as_json: bool) -> None:
    from stepscope.whatif import CHANGES

    if as_json:
        keys = ("name", "parameters", "summary", "group")
        rows = [(one.name, [*one.parameters], one.summary, one.group) for one in CHANGES.values()]
        echo_json([dict(zip(keys, row, strict=True)) for row in rows])
        return
    for group, changes in groupby(CHANGES.values(), key=lambda change: change.group):
        click.echo(f"{group}")
        for change in changes:
            parameters = ",".join(f"{key}=…" for key in change.parameters)
            click.echo(f"  {change.name}{':' if parameters else ''}{parameters}")
            click.echo(f"      {change.summary}")


def _print_all(ranking: Ranking, as_json: bool) -> None:
    if as_json:
        changes = [one.to_json() for one in ranking.gains]
        echo_json({"changes": changes, "not_applicable": ranking.reasons})
        return
    for one in ranking.gains:
        click.echo(
            f"{one.speedup:6.2f}x  {one.predicted_step_ms:10.3f} ms  {' '.join(one.changes)}"
            f"{_uncertain(one)}\n{'':23}{', '.join(one.basis)}"
        )
    if not ranking.gains:
        click.echo("none of the changes applies to these steps")
    _print_reasons(ranking)


def _print_reasons(ranking: Ranking) -> None:
    """The changes without a prediction: those that want a calibration, and the others."""
    if ranking.unmeasured:
        names = ", ".join(ranking.unmeasured)
        click.echo(f"run `stepscope calibrate FILE` on the same machine to predict: {names}")
    if others := [name for name in ranking.reasons if name not in ranking.unmeasured]:
        click.echo(f"not applicable: {', '.join(others)} (reasons: --json)")


def _print_fits(graph: Graph, capacity: str, as_json: bool) -> None:
    from stepscope.batch_size.device_memory import find_capacity
    from stepscope.summary.numbers import size
    from stepscope.whatif.fitting import find_fits

    limit = find_capacity(capacity)
    usable = limit.bytes if limit.is_size else limit.usable_bytes
    found = find_fits(graph, usable)
    if as_json:
        echo_json({"limit_bytes": usable, "fits": [fit.to_json() for fit in found]})
        return
    if not found:
        click.echo(f"nothing that was tried makes the step fit into {size(usable)}")
    elif not found[0].changes:
        click.echo(f"the step fits into {size(usable)} as it is: "
                   f"{size(found[0].memory.measured_bytes)} at the peak")  # fmt: skip
        return
    for fit in found:
        cost = f"{fit.cost:+8.1%}" if fit.cost is not None else f"{'?':>8}"
        click.echo(f"{cost} time per sample  {size(fit.memory.predicted_bytes):>10} at the peak  "
                   f"{' '.join(fit.changes)}")  # fmt: skip
        if fit.why_no_time:
            click.echo(f"{'':10}{fit.why_no_time}")


def _print_prediction(answer: Prediction, as_json: bool) -> None:
    if as_json:
        echo_json(answer.to_json())
        return
    for line in _lines(answer):
        click.echo(line)


def _lines(answer: Prediction) -> list[str]:
    low, high = answer.range
    lines = [
        f"measured   {answer.measured_step_ms:10.3f} ms per step{_device(answer)}",
        f"replayed   {answer.replayed_step_ms:10.3f} ms, {answer.replay_error:+.2%}",
        f"predicted  {answer.predicted_step_ms:10.3f} ms, {answer.speedup:.2f}x "
        f"({low:.3f} to {high:.3f} ms)  {' '.join(answer.changes) or 'no change'}"
        f"{_uncertain(answer)}",
        *_memory_lines(answer),
        *(f"based on   {basis}" for basis in dict.fromkeys(answer.basis) if basis),
        "",
        f"{'ms per step':<22}{'before':>12}{'after':>12}",
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
    return [*lines, "", "assumptions", *(f"  {text}" for text in answer.assumptions)]


def _device(answer: Prediction) -> str:
    """What the busiest device does in the measured step; empty if none works."""
    if answer.device_busy_ms is None or answer.device_idle_ms is None:
        return ""
    return f", device busy {answer.device_busy_ms:.3f} ms, idle {answer.device_idle_ms:.3f} ms"


def _memory_lines(answer: Prediction) -> list[str]:
    from stepscope.summary.numbers import size

    memory = answer.memory
    if memory is None:
        return []
    error = "error not measured" if memory.error is None else f"error up to {memory.error:.0%}"
    after = f" to {size(memory.predicted_bytes)} ({error})" if answer.changes else ""
    unknown = f"; effect not known: {', '.join(memory.unknown)}" if memory.unknown else ""
    return [f"peak       {size(memory.measured_bytes)} on {memory.device}{after}{unknown}"]


def _uncertain(answer: Prediction) -> str:
    if answer.is_certain or not answer.changes:
        return ""
    return "  (within the error: the range includes the unchanged step)"


def _row(label: str, before: float, after: float) -> str:
    return f"  {label:<20}{before:>12.3f}{after:>12.3f}"
