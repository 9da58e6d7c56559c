"""`stepscope whatif`: predict how changes would affect step time, before anyone makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.faces.terminal.output import show_answer
from stepscope.faces.terminal.source import Source, many_ranks, takes_file

if TYPE_CHECKING:
    from stepscope.graph import Graph
    from stepscope.models.ranks.job import ManyRanks
    from stepscope.models.ranks.replay import Replay
    from stepscope.models.whatif.ranking import Ranking

_OF_JOB = ("no_straggler", "bandwidth")  # changes whose effect sketches show


class _Whatif(click.Command):
    """Lists the changes without a FILE, and refuses options that contradict each other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--list" in args:
            _list("--json" in args)
            ctx.exit()
        rest = super().parse_args(ctx, args)
        if ctx.params.get("try_all") and ctx.params.get("changes"):
            raise click.UsageError("--all tries every change on its own; leave out CHANGE, or it")
        if ctx.params.get("fits") and (ctx.params.get("try_all") or ctx.params.get("changes")):
            raise click.UsageError("--fits chooses the changes itself; leave out CHANGE and --all")
        return rest


@click.command(cls=_Whatif)
@takes_file
@click.argument("changes", nargs=-1, metavar="[CHANGE[:KEY=VALUE,…]]…")
@click.option(
    "--list", is_flag=True, expose_value=False, help="List the changes and their parameters; needs no FILE."
)
@click.option("--all", "try_all", is_flag=True, help="Try every change, and list them by gain.")
@click.option(
    "--fits", metavar="24GB|DEVICE", help="List the changes, cheapest in time first, that make the step fit."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--step", type=int, help="One step; by default the longest run of consecutive steps.")
@click.option("--device", metavar="NAME", help="The GPU, such as H100, for a trace that does not name it.")
@click.option("--rank", type=int, help="One process rank; by default all ranks together.")
def whatif(
    file: Source,
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
    whole_job = many and not try_all and fits is None and step is None
    if many and whole_job and all(text.partition(":")[0] in _OF_JOB for text in changes):
        _predict_job(many, changes, as_json)
        return
    if many:
        file = file.slowest(many)
    if try_all:
        _show_all(_ranking(file, step, rank, device), as_json)
    elif fits is not None:
        _show_fits(_graph(file, step, rank, device), fits, as_json)
    else:
        _show_prediction(_graph(file, step, rank, device), changes, as_json)


def _graph(file: Source, step: int | None, rank: int | None, device: str | None) -> Graph:
    from stepscope.facts.annotate.steps.step_table import coverage_note
    from stepscope.facts.roofline import with_device
    from stepscope.models.whatif.ranking import graph_of

    trace = file.load()
    if note := coverage_note(trace, trace.metadata.ranks[0] if rank is None else rank):
        click.echo(f"! {note}", err=True)
    return graph_of(trace if device is None else with_device(trace, device), step, rank)


def _ranking(file: Source, step: int | None, rank: int | None, device: str | None) -> Ranking:
    from stepscope.faces.terminal.answers import AnswerKind, answer_of, calibrations
    from stepscope.models.whatif.ranking import Ranking, graph_of, rank_changes

    if device is not None:
        return rank_changes(_graph(file, step, rank, device))
    packages = ("models/calibration", "graph", "models/memory", "facts/roofline", "models/whatif")
    kind = AnswerKind("what-ifs", Ranking, packages)
    asked = (step, rank, calibrations())
    return answer_of(kind, file, asked, lambda trace: rank_changes(graph_of(trace, step, rank)))


def _list(as_json: bool) -> None:
    from stepscope.faces.terminal.whatif_text import change_lines
    from stepscope.models.whatif import CHANGES

    keys = ("name", "parameters", "summary", "group")
    rows = [(one.name, [*one.parameters], one.summary, one.group) for one in CHANGES.values()]
    facts = [dict(zip(keys, row, strict=True)) for row in rows]
    show_answer(facts, change_lines(CHANGES.values()), as_json)


def _show_all(ranking: Ranking, as_json: bool) -> None:
    from stepscope.faces.terminal.whatif_text import ranking_lines

    facts = {"changes": ranking.gains, "not_applicable": ranking.reasons}
    show_answer(facts, ranking_lines(ranking), as_json)


def _show_fits(graph: Graph, capacity: str, as_json: bool) -> None:
    from stepscope.faces.terminal.whatif_text import fit_lines
    from stepscope.facts.roofline.device_memory import find_capacity
    from stepscope.models.whatif.ranking import find_fits

    limit = find_capacity(capacity)
    usable = limit.bytes if limit.is_size else limit.usable_bytes
    fits = find_fits(graph, usable)
    facts = {"limit_bytes": usable, "fits": fits}
    show_answer(facts, fit_lines(fits, usable), as_json)


def _show_prediction(graph: Graph, changes: Sequence[str], as_json: bool) -> None:
    from stepscope.faces.terminal.whatif_text import prediction_lines
    from stepscope.models.whatif import CHANGES, parse_request, predict

    prediction = predict(graph, [parse_request(text, CHANGES) for text in changes])
    show_answer(prediction, prediction_lines(prediction), as_json)


def _predict_job(many: ManyRanks, changes: Sequence[str], as_json: bool) -> None:
    """Print a prediction for all ranks of a job, from their sketches."""
    from stepscope.faces.terminal.whatif_text import job_lines

    replay = many.job.replay
    for text in changes:
        replay = _changed(many, replay, text)
    measured = float(many.job.table.length.mean())
    before, after = many.job.replay.step_ms, replay.step_ms
    facts = {
        "ranks": many.report.ranks,
        "changes": list(changes),
        "measured_step_ms": measured,
        "replayed_step_ms": before,
        "replay_error": before / measured - 1,
        "predicted_step_ms": after,
        "speedup": before / after,
        "basis": ["the sketches"],
    }
    show_answer(facts, job_lines(facts), as_json)


def _changed(many: ManyRanks, replay: Replay, text: str) -> Replay:
    from stepscope.errors import ChangeError
    from stepscope.models.ranks.replay_whatifs import job_with
    from stepscope.models.whatif import CHANGES, parse_request

    request = parse_request(text, CHANGES)
    factor = float(request.values.get("factor", 2.0))
    if factor <= 0:
        raise ChangeError(f"{text}: expected factor above 0, found {factor:g}")
    changed = job_with(many.job.table, replay, request.change.name, factor)
    if changed is None:
        raise ChangeError(f"{text}: the sketches of these ranks show no communication")
    return changed
