"""`stepscope status` and `record`: what watched runs do now, and a few of their steps recorded; and the
bill of runs, which `stepscope FILE` shows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.base.numbers import duration, ms, rounded
from stepscope.base.watch_format import MOST_ASKED_STEPS, SUFFIX, is_watched_run
from stepscope.errors import StepscopeError
from stepscope.faces.terminal.output import echo_json, printable

if TYPE_CHECKING:
    from stepscope.facts.watched import Bill, LastMinute

_PATIENCE_S = 300  # s; chosen: an evaluation or a checkpoint between two steps may take minutes
_MOST = 8  # rows of each part of a bill
_LEAST = 0.0005  # of the run, which 0.1 % shows
_NOTABLE = 0.02  # of the run; chosen: a line below that is not worth a change


@click.command()
@click.argument("pids", metavar="[PID]...", nargs=-1, type=click.IntRange(1))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def status(pids: Sequence[int], as_json: bool) -> None:
    """Show the last minute of watched runs; without PID, of all of yours on this machine."""
    from stepscope.facts.watched import last_minute
    from stepscope.read.watched_run import read_watched_run
    from stepscope.record.watch.requests import watch_file_of, watched_runs

    own = {} if pids else {pid: file for pid, file in watched_runs().items() if is_watched_run(file)}
    files = {pid: watch_file_of(pid) for pid in pids} or own
    if not files:
        raise StepscopeError("no watched run on this machine; start one with: stepscope watch SCRIPT")
    minutes = {pid: last_minute(read_watched_run(file), time.time_ns()) for pid, file in files.items()}
    if as_json:
        echo_json([{"pid": pid, "file": str(files[pid]), "last_minute": minutes[pid]} for pid in files])
        return
    for pid, file in files.items():
        click.echo(printable(f"{pid}: {_line(minutes[pid])}; {file}"))


@click.command()
@click.argument("pids", metavar="PID...", nargs=-1, required=True, type=click.IntRange(1))
@click.option(
    "--steps", type=click.IntRange(1, MOST_ASKED_STEPS), default=3, show_default=True, help="Steps to record."
)
def record(pids: Sequence[int], steps: int) -> None:
    """Record the next steps of watched runs, as `stepscope run` does, next to their files."""
    from stepscope.record.watch.requests import ask_to_record

    for pid in pids:
        ask_to_record(pid, steps)
    failures = []
    for pid in pids:
        answer = _answer_of(pid)
        if answer["file"]:
            click.echo(printable(f"{pid}: {answer['message']}; next: stepscope report {answer['file']}"))
        else:
            failures.append(f"process {pid} recorded nothing: {answer['message']}")
    if failures:
        raise StepscopeError("; ".join(failures))


def _answer_of(pid: int) -> dict[str, str]:
    """What became of a request, which is withdrawn if the run has not written its file for long."""
    from stepscope.record.watch.requests import recorded, watch_file_of, withdraw

    trained_at = time.time()
    while (answer := recorded(pid)) is None:
        file = watch_file_of(pid)
        trained_at = max(trained_at, file.stat().st_mtime if file.exists() else 0)
        if time.time() > trained_at + _PATIENCE_S:
            withdraw(pid)
            return {"file": "", "message": f"it has not trained for {duration(_PATIENCE_S)}"}
        time.sleep(0.2)
    return answer


def _line(minute: LastMinute | None) -> str:
    if minute is None:
        return "no step yet"
    shares = minute.shares.items()
    named = "".join(f", {share:.0%} {cause}" for cause, share in shares if share >= 0.01)  # of the minute
    return (
        f"step {minute.step:,} ended {duration(minute.since_s)} ago; the last {minute.steps:,} step"
        f"{'s' * (minute.steps > 1)} took {ms(minute.mean_ms)} ms on average, {ms(minute.most_ms)} ms at most"
        f"{named}"
    )


def watched_files(path: str) -> list[Path]:
    """The file of a watched run, or those of each rank in a folder; none for anything else."""
    files = Path(path).glob(f"*{SUFFIX}") if Path(path).is_dir() else [Path(path)]
    return sorted(filter(is_watched_run, files))


def show_watched(files: Sequence[Path], as_json: bool, rank: int | None = None) -> None:
    """Print the bill of each run, and which rank of a job is slow; or the bill of one rank."""
    from stepscope.facts.watched import bill_of, slow_rank
    from stepscope.read.watched_run import read_watched_run

    pairs = [(read_watched_run(file), file.name) for file in files]
    shown = [pair for pair in pairs if rank in (None, pair[0].facts.rank)]
    if not shown:
        known = ", ".join(map(str, sorted({run.facts.rank for run, _ in pairs})))
        raise StepscopeError(f"there is no rank {rank}; the run has {known}")
    runs, names = zip(*sorted(shown, key=lambda pair: pair[0].facts.rank), strict=True)
    bills, slow = [bill_of(run) for run in runs], slow_rank(runs)
    if as_json:
        echo_json({"ranks": bills, "slow_rank": slow})
        return
    if slow:
        lost = duration(1e-3 * slow.lost_ms * (slow.last - slow.first + 1))
        more = f"{rounded(slow.lost_ms)} ms a step more than the median of the others, {lost} in all"
        click.echo(f"rank {slow.rank} is the last in steps {slow.first:,} to {slow.last:,}: {more}")
    files_of = Counter(run.facts.rank for run in runs)
    for bill, name in zip(bills, names, strict=True):
        text = printable("\n".join(line.replace("\n", " ") for line in _bill_lines(bill)))
        file = f" ({printable(name)})" if files_of[bill.facts.rank] > 1 else ""  # of a restarted job
        click.echo(f"{f'rank {bill.facts.rank}{file}: ' if len(bills) > 1 else ''}{text}")


def _bill_lines(bill: Bill) -> Iterator[str]:
    from stepscope.facts.slow_steps import sentence_of
    from stepscope.facts.watched import without_first

    steps = f"{bill.steps:,} step{'s' * (bill.steps != 1)} in {duration(bill.run_s)}"
    yield f"{bill.facts.command}: {steps}; {bill.facts.outcome or 'still running, or killed'}"
    if bill.facts.out_of_memory:
        yield f"out of memory on {bill.facts.out_of_memory}"
    if bill.steps:
        over_time = " ".join(map(rounded, bill.step_ms_over_time))
        yield f"a usual step takes {rounded(bill.usual_ms)} ms; mean ms of each tenth: {over_time}"
        host = "; times are the CPU's, not the device's" if bill.facts.on_device else ""
        yield f"time lost (causes may overlap{host}):"
    for loss in [loss for loss in bill.losses if loss.share >= _LEAST][:_MOST]:
        where = f", {loss.where}" if loss.where else ""
        yield f"  {duration(loss.lost_s):>11}  {loss.share:6.1%}  {loss.cause}{where}"
    if without := without_first(bill):
        yield without
    lines = [line for line in bill.lines if line.share >= _NOTABLE][:_MOST]
    if lines:
        yield "lines of the training thread, by samples:"
    for line in lines:
        yield f"  {duration(line.lost_s):>11}  {line.share:6.1%}  {line.where}"
    yield from _role_lines(bill)
    yield from map(sentence_of, bill.slow[:_MOST])


def _role_lines(bill: Bill) -> Iterator[str]:
    """What each role waits for, and for whom the others wait."""
    limits = f"; {bill.limiting_role} limits the run" if bill.limiting_role else ""
    if bill.roles:
        yield f"processes, by samples of their main threads{limits}:"
    for role in bill.roles:
        times = f" × {role.processes}" if role.processes > 1 else ""
        waits = f", most at {role.waits_at}" if role.waits >= _NOTABLE and role.waits_at else ""
        works = f"; works most at {role.works_at}" if role.works_at else ""
        yield f"  {role.role}{times}: waits {role.waits:.1%}{waits}{works}"
