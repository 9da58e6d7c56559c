"""`stepscope whatif`: predict how changes would affect step time, before anyone makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.base.numbers import size
from stepscope.base.plugins import plugin_names
from stepscope.faces.terminal.options import takes_path
from stepscope.faces.terminal.output import say, show_answer
from stepscope.faces.terminal.source import InputFile, many_ranks, takes_file

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.facts.summary.job_findings import JobFindings
    from stepscope.graph import Graph
    from stepscope.models.ranks.job import ManyRanks
    from stepscope.models.ranks.replay import Replay
    from stepscope.models.whatif import Prediction
    from stepscope.models.whatif.best import Best
    from stepscope.models.whatif.change import Change
    from stepscope.models.whatif.prediction import MemoryPrediction
    from stepscope.models.whatif.ranking import Fit, Ranking

_OF_JOB = ("no_straggler", "bandwidth")  # changes whose effect sketches show
_LIMITS = 0.95  # of the step: as much of it as the longer of two sides takes, to within noise
_LEAST_MS = 0.0005  # shorter times would be shown as 0.000


class _Whatif(click.Command):
    """Lists the changes without a FILE, and refuses options that contradict each other."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--list" in args:
            words = [part for word in args for part in word.split("=", word.startswith("--changes="))]
            _list([path for before, path in pairwise(words) if before == "--changes"], "--json" in args)
            ctx.exit()
        rest = super().parse_args(ctx, args)
        if ctx.params.get("try_all") and ctx.params.get("changes"):
            raise click.UsageError("--all tries every change on its own; leave out CHANGE, or it")
        if ctx.params.get("files") and not ctx.params.get("changes"):
            raise click.UsageError("--changes needs the names of changes in its file, as CHANGE")
        chosen = [f"--{name}" for name in ("fits", "best") if ctx.params.get(name)]
        if chosen and (ctx.params.get("try_all") or ctx.params.get("changes")):
            raise click.UsageError(f"{chosen[-1]} chooses the changes itself; leave out CHANGE and --all")
        if ctx.params.get("goal_ms") is not None and not ctx.params.get("best"):
            raise click.UsageError("--to is a goal of --best")
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
@click.option(
    "--best",
    is_flag=True,
    help="Find the changes that make the step fastest together; with --fits, that fit.",
)
@click.option(
    "--to",
    "goal_ms",
    metavar="MS",
    type=click.FloatRange(0, min_open=True),
    help="With --best, the fewest changes that make the step as short as this.",
)
@click.option(
    "--changes",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False),
    help="Python file with custom changes (it is executed).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--step", type=int, help="One step; by default the longest run of consecutive steps.")
@click.option("--device", metavar="NAME", help="The GPU, such as H100, for a trace that does not name it.")
@takes_path(
    "--execution-trace",
    "JSON",
    "PyTorch's execution trace of the same run, for dependencies between threads and streams.",
)
@click.option("--rank", type=int, help="One process rank; by default all ranks together.")
def whatif(
    file: InputFile,
    changes: tuple[str, ...],
    try_all: bool,
    fits: str | None,
    best: bool,
    goal_ms: float | None,
    files: tuple[str, ...],
    as_json: bool,
    step: int | None,
    device: str | None,
    execution_trace: str | None,
    rank: int | None,
) -> None:
    """Predict how changes would affect step time, applied in the order given.

    For example: amp, bandwidth:factor=2, scale:select=stage=backward+kind=gemm,factor=0.5.
    """
    from stepscope.models.ranks.job import findings_of, report_of_trace

    many = many_ranks(Path(file.path), file.cache) if rank is None else None
    whole_job = many and not try_all and not files and fits is None and not best and step is None
    whole_job = whole_job and execution_trace is None
    given = device, execution_trace
    if many and whole_job and all(text.partition(":")[0] in _OF_JOB for text in changes):
        _predict_job(many, changes, as_json)
        return
    if many:
        file = file.slowest(many)
    if try_all:
        ranking = ranking_of_file(file, step, rank, *given)
        facts: dict[str, object] = {"changes": ranking.gains, "not_applicable": ranking.reasons}
        if ranking.notes:
            facts["notes"] = ranking.notes
        show_answer(facts, _ranking_lines(ranking), as_json)
    elif best:
        _show_best(_graph(file, step, rank, *given), goal_ms, fits, as_json)
    elif fits is not None:
        _show_fits(_graph(file, step, rank, *given), fits, as_json)
    else:
        graph = _graph(file, step, rank, *given)
        report = many.report if many else report_of_trace(graph.trace) if rank is None else None
        _show_prediction(graph, findings_of(report) if report else None, changes, files, as_json)


def _graph(
    file: InputFile, step: int | None, rank: int | None, device: str | None, execution_trace: str | None
) -> Graph:
    from stepscope.facts.roofline.rates import with_device
    from stepscope.graph import with_execution_trace
    from stepscope.models.whatif.ranking import graph_of, notes_of

    trace = file.load()
    for note in notes_of(trace, rank, step):
        say(f"! {note}")
    trace = trace if execution_trace is None else with_execution_trace(trace, Path(execution_trace))
    return graph_of(trace if device is None else with_device(trace, device), step, rank)


def ranking_of_file(file: InputFile, step: int | None, rank: int | None, *given: str | None) -> Ranking:
    """Every change tried on its own; kept in the cache unless a device or an execution trace is `given`,
    or other packages add changes."""
    from stepscope.faces.terminal.answers import answer_of, calibrations
    from stepscope.models.whatif.ranking import Ranking, graph_of, rank_changes

    if any(each is not None for each in given) or plugin_names("changes"):
        return rank_changes(_graph(file, step, rank, *given), rank, step)
    packages = ("models/calibration", "graph", "models/memory", "facts/roofline", "models/whatif")
    return answer_of(
        file,
        "what-ifs",
        Ranking,
        packages,
        (step, rank, calibrations()),
        lambda trace: rank_changes(graph_of(trace, step, rank), rank, step),
    )


def _list(files: Sequence[str], as_json: bool) -> None:
    changes = _known(files).values()
    keys = ("name", "parameters", "summary", "group")
    rows = [(one.name, [*one.parameters], one.summary, one.group) for one in changes]
    show_answer([dict(zip(keys, row, strict=True)) for row in rows], _change_lines(changes), as_json)


def _known(files: Sequence[str]) -> dict[str, Change]:
    """The built-in changes, and those of files of the user's."""
    from stepscope.models.whatif import CHANGES, load_changes

    known = dict(CHANGES)
    for path in files:
        known |= load_changes(path, known)
    return known


def _show_fits(graph: Graph, capacity: str, as_json: bool) -> None:
    from stepscope.facts.roofline.rates import find_capacity
    from stepscope.models.whatif.ranking import find_fits

    limit = find_capacity(capacity)
    fits = find_fits(graph, limit)
    facts = {"limit_bytes": limit.limit_bytes, "fits": fits}
    show_answer(facts, _fit_lines(fits, limit.limit_bytes), as_json)


def _show_best(graph: Graph, goal_ms: float | None, capacity: str | None, as_json: bool) -> None:
    from stepscope.facts.roofline.rates import find_capacity
    from stepscope.models.whatif.best import find_best

    best = find_best(graph, goal_ms, find_capacity(capacity) if capacity else None)
    show_answer(best, _best_lines(best, goal_ms), as_json)


def _show_prediction(
    graph: Graph, job: JobFindings | None, changes: Sequence[str], files: Sequence[str], as_json: bool
) -> None:
    from msgspec import to_builtins

    from stepscope.models.whatif import parse_request, predict

    known = _known(files)
    prediction = predict(graph, [parse_request(text, known) for text in changes])
    show_answer(
        prediction if job is None else to_builtins(prediction) | {"job": job},
        [*([job.headline, ""] if job else []), *_prediction_lines(prediction)],
        as_json,
    )


def _predict_job(many: ManyRanks, changes: Sequence[str], as_json: bool) -> None:
    """Print a prediction for all ranks of a job, from their sketches."""
    replay = many.job.replay
    for text in changes:
        replay = _changed(many, replay, text)
    measured = float(many.job.table.length.mean())
    before, after = many.job.replay.step_ms, replay.step_ms
    facts = {
        "job": many.findings,
        "ranks": many.report.ranks,
        "changes": list(changes),
        "measured_step_ms": measured,
        "replayed_step_ms": before,
        "replay_error": before / measured - 1,
        "predicted_step_ms": after,
        "speedup": before / after,
        "basis": ["the sketches"],
    }
    show_answer(facts, _job_lines(facts), as_json)


def _changed(many: ManyRanks, replay: Replay, text: str) -> Replay:
    from stepscope.errors import ChangeError
    from stepscope.models.ranks.replay_whatifs import job_with
    from stepscope.models.whatif import CHANGES, parse_request

    request = parse_request(text, CHANGES)
    if (factor := request.values.get("factor", 2.0)) <= 0:
        raise ChangeError(f"{text}: expected factor above 0, found {factor:g}")
    changed = job_with(many.job.table, replay, request.change.name, **request.values)
    if changed is None:
        raise ChangeError(f"{text}: the sketches of these ranks show no communication")
    return changed


# -- answers as lines of text


def _change_lines(changes: Iterable[Change]) -> Iterator[str]:
    for group, members in groupby(changes, key=lambda change: change.group):
        yield f"{group}"
        for change in members:
            parameters = ",".join(f"{key}=…" for key in change.parameters)
            yield f"  {change.name}{':' if parameters else ''}{parameters}"
            yield f"      {change.summary}"


def _ranking_lines(ranking: Ranking) -> Iterator[str]:
    yield from (f"! {note}" for note in ranking.notes)
    for gain in ranking.gains:
        yield (
            f"{gain.speedup:6.2f}x  {gain.predicted_step_ms:10.3f} ms  {' '.join(gain.changes)}"
            f"{_uncertain(gain)}\n{'':23}{', '.join(gain.basis)}"
        )
    if not ranking.gains:
        yield "no change can be predicted for these steps"
    yield from _not_predicted(ranking.reasons, ranking.unmeasured)


def _not_predicted(reasons: Mapping[str, str], unmeasured: Sequence[str]) -> Iterator[str]:
    """What a calibration would predict, and what does not apply."""
    if unmeasured:
        yield f"run `stepscope calibrate FILE` on the same machine to predict: {', '.join(unmeasured)}"
    if others := [name for name in reasons if name not in unmeasured]:
        yield f"not applicable: {', '.join(others)} (reasons: --json)"


def _fit_lines(fits: Sequence[Fit], usable: int) -> Iterator[str]:
    """The changes that make a step fit into some bytes, cheapest first."""
    if not fits:
        yield f"nothing that was tried makes the step fit into {size(usable)}"
        return
    if not fits[0].changes:
        peak = _with_reserved(fits[0].memory)
        yield f"the step fits into {size(usable)} as it is: {peak} at the peak"
        return
    for fit in fits:
        cost = f"{fit.cost:+8.1%}" if fit.cost is not None else f"{'?':>8}"
        peak = _with_reserved(fit.memory)
        yield f"{cost} time per sample  {peak:>10} at the peak  {' '.join(fit.changes)}"
        if fit.why_no_time:
            yield f"{'':10}{fit.why_no_time}"


def _best_lines(best: Best, goal_ms: float | None) -> Iterator[str]:
    """A combination of changes: what all of them gain, what each adds to the others, what is left out."""
    answer = best.prediction
    low, high = answer.range
    if best.reached is False:
        yield f"nothing that was tried reaches {goal_ms:g} ms"
    if answer.changes:
        yield (
            f"{answer.speedup:.2f}x, {answer.predicted_step_ms:.3f} ms ({low:.3f} to {high:.3f} ms) instead "
            f"of {answer.replayed_step_ms:.3f}: {' '.join(answer.changes)}{_uncertain(answer)}"
        )
    else:
        yield f"{answer.replayed_step_ms:.3f} ms: no change saves more than its error"
    if best.same_samples_ms > answer.predicted_step_ms * 1.001:
        yield f"  for as many samples as before: {best.same_samples_ms:.3f} ms"
    yield from _memory_lines(answer)
    for part in best.parts:
        low, high = part.range
        bytes_ = part.memory_bytes
        memory = "" if not bytes_ else f", {'-' if bytes_ > 0 else '+'}{size(abs(bytes_))} at the peak"
        yield f"  without {part.change} {part.gain_ms:+.3f} ms ({low:+.3f} to {high:+.3f}){memory}"
    yield f"\n{best.tried} combination{' was' if best.tried == 1 else 's were'} predicted"
    yield from (f"  with {name} in addition: {reason}" for name, reason in best.left_out.items())
    yield from _not_predicted(best.not_applicable, best.unmeasured)


def _with_reserved(memory: MemoryPrediction) -> str:
    held = memory.reserved_bytes
    return size(memory.predicted_bytes) + (f" ({size(held)} reserved)" if held else "")


def _job_lines(facts: Mapping[str, Any]) -> list[str]:
    """A prediction for all ranks of a job, as `--json` has it."""
    return [
        facts["job"].headline,
        "",
        f"measured   {facts['measured_step_ms']:10.3f} ms per step",
        f"replayed   {facts['replayed_step_ms']:10.3f} ms, {facts['replay_error']:+.2%}",
        f"predicted  {facts['predicted_step_ms']:10.3f} ms, {facts['speedup']:.2f}x  "
        f"{' '.join(facts['changes']) or 'no change'}",
        f"based on   {facts['basis'][0]} of {facts['ranks']} ranks",
        "",
        "assumptions",
        "  times are the mean of all ranks; a collective begins when the last rank arrives, and "
        "then takes as long as it did",
    ]


def print_prediction(console: Console, answer: Prediction) -> None:
    console.print("\n".join(_prediction_lines(answer)), highlight=False, markup=False)


def _prediction_lines(answer: Prediction) -> list[str]:
    """Measured and predicted times, what they rest on, and where the step spends them."""
    low, high = answer.range
    lines = [
        f"measured   {answer.measured_step_ms:10.3f} ms per step{_device(answer)}",
        f"replayed   {answer.replayed_step_ms:10.3f} ms, {answer.replay_error:+.2%}{_left_out(answer)}",
        f"predicted  {answer.predicted_step_ms:10.3f} ms, {answer.speedup:.2f}x ({low:.3f} to {high:.3f} "
        f"ms)  {' '.join(answer.changes) or 'no change'}{_uncertain(answer)}",
        *_host_lines(answer),
        *_memory_lines(answer),
        *(f"based on   {basis}" for basis in dict.fromkeys(answer.basis) if basis),
        "",
        f"{'ms per step':<22}{'before':>12}{'after':>12}",
    ]
    before, after = answer.breakdown["before"], answer.breakdown["after"]
    labels = {
        "cpu_only_ms": "only CPU",
        "device_only_ms": "only device",
        "parallel_ms": "both",
        "idle_ms": "neither",
    }
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


def _host_lines(answer: Prediction) -> list[str]:
    """What the CPU needs for a step: no change of the device's work makes it shorter."""
    if not answer.host_ms:
        return []
    before, after = answer.host_ms["before"], answer.host_ms["after"]
    limits = "; then the CPU limits the step" if after >= _LIMITS * answer.predicted_step_ms else ""
    limits += ", once its lead is spent" if after > answer.predicted_step_ms else ""
    changed = f", {after:.3f} with the change{limits}" if answer.changes else ""
    return [f"CPU needs  {before:10.3f} ms{changed}"]


def _left_out(answer: Prediction) -> str:
    """What the replay leaves out, and at what pace it is; empty if nothing differs."""
    text = "" if answer.one_off_ms < _LEAST_MS else f", without {answer.one_off_ms:.3f} ms of one-off costs"
    recorded_ms = (answer.measured_step_ms - answer.one_off_ms) * (1 + answer.replay_error)
    if abs(answer.replayed_step_ms - recorded_ms) < _LEAST_MS:
        return text
    return f"{text}; at the pace of steps that nothing records"


def _memory_lines(answer: Prediction) -> list[str]:
    memory = answer.memory
    if memory is None:
        return []
    error = "error not measured" if memory.error is None else f"error up to {memory.error:.0%}"
    after = f" to {_with_reserved(memory)} ({error})" if answer.changes else ""
    unknown = f"; effect not known: {', '.join(memory.unknown)}" if memory.unknown else ""
    return [f"peak       {size(memory.measured_bytes)} on {memory.device}{after}{unknown}"]


def _uncertain(answer: Prediction) -> str:
    if answer.is_certain or not answer.changes:
        return ""
    return "  (within the error: the range includes the unchanged step)"


def _row(label: str, before: float, after: float) -> str:
    return f"  {label:<20}{before:>12.3f}{after:>12.3f}"
