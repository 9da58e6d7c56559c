"""`stepscope fits`: whether a training script fits a GPU that is not here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from stepscope.faces.terminal.options import MeasuringCommand, ScriptPath, above_zero, mentions
from stepscope.faces.terminal.output import show_answer

if TYPE_CHECKING:
    from stepscope.models.batch_size import Result


class FitsCommand(MeasuringCommand):
    """Takes `--on` right after the script, too, unless the script has such an option."""

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        ours, positionals, rest = super()._split(args)
        count = 2 if positionals and rest[:1] == ["--on"] and not mentions(positionals[-1], "--on") else 0
        return ours + rest[:count], positionals, rest[count:]


@click.command(cls=FitsCommand, context_settings={"allow_interspersed_args": False})
@click.option("--on", "devices", metavar="H100,24GB,…", required=True, help="GPUs, or sizes of memory.")
@click.option("--site", "choice", metavar="LINE", help="Which of several batch sizes, as in batch.")
@above_zero("--timeout", 600.0, "Seconds before a run times out.")
@click.option("--python", metavar="PATH", help="Python interpreter that runs the script.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.argument("entry", type=ScriptPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def fits(
    entry: str,
    arguments: tuple[str, ...],
    devices: str,
    choice: str | None,
    timeout: float,
    python: str | None,
    as_json: bool,
) -> None:
    """Predict whether a training script fits a GPU that is not here, and the largest batch size.

    ENTRY is run for three steps at a few batch sizes on tensors without values, which computes
    nothing, and its allocations go through a simulation of PyTorch's allocator. A script that
    cannot run so, such as one of JAX, is run on this machine instead.
    """
    from stepscope.faces.terminal.output import step_progress
    from stepscope.facts.roofline.rates import find_capacity
    from stepscope.models.batch_size import Session, open_entry
    from stepscope.models.batch_size.gpu_memory import own_size

    capacities = [find_capacity(name.strip()) for name in devices.split(",")]
    opened = open_entry(entry, arguments, choice=choice)
    with step_progress() as tell, Session(python, tell) as session:
        result = session.memory_on_gpu(opened, capacities, timeout)
    found = [{**result.fits(one), "now": own_size(result, one)} for one in capacities]
    notes = result.profile.warnings
    facts = {"entry": result.entry.path, "site": opened.site.to_json(), "fits": found, "warnings": notes}
    show_answer(facts, _lines(result, found), as_json)


def _lines(result: Result, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    from stepscope.faces.terminal.batch_text import FITS
    from stepscope.facts.summary.numbers import size

    for fit in found:
        now = fit["now"]
        low, high = map(size, now["reserved_range"])
        yield f"{fit['name']}: batch size {now['batch']:,} {FITS[now['fits']][0]}"
        yield f"  {size(now['bytes'])} in use, {low} to {high} reserved of {size(fit['usable_bytes'])}"
        yield f"  {_largest(result, fit)}"
    yield from (f"! {note}" for note in result.profile.warnings)


def _largest(result: Result, fit: Mapping[str, Any]) -> str:
    if fit["batch"] is None:
        return "even one sample takes more"
    least, most = (f"{end or 0:,}" for end in fit["batch_range"])
    if not result.profile.trusts(fit["batch"]):
        return f"at least {result.profile.most:,} fits"
    return f"largest batch size: {fit['batch']:,} ({least} to {most})"
