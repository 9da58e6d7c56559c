"""`stepscope batch` and `fits`: which batch size, from a few short runs, and what fits another GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from msgspec import to_builtins

from stepscope.base.numbers import size
from stepscope.base.scratch import plan_scratch
from stepscope.errors import BatchError
from stepscope.faces.page.bundle import data_element, page_in_one
from stepscope.faces.terminal.batch_text import FITS, print_batch, print_devices
from stepscope.faces.terminal.options import (
    MeasuringCommand,
    OutputFile,
    ScriptPath,
    above_zero,
    ask_before_running,
    at_least_one,
    mentions,
)
from stepscope.faces.terminal.output import echo_json, say, show_answer, step_progress, terminal, write_text
from stepscope.facts.roofline.rates import find_capacity
from stepscope.models.batch_size import QUICK, Plan, Result, Session, open_entry
from stepscope.models.batch_size.entry import Entry, module_file
from stepscope.models.batch_size.entry_result import batch_profile
from stepscope.models.batch_size.profile_session import own_size
from stepscope.models.devices import Wanted, parse_targets, project, read_prices
from stepscope.models.devices.device_answer import DevicesAnswer

Elsewhere = Callable[[Result], DevicesAnswer | None]
ELEMENT, DEVICES_ELEMENT = "stepscope-batch", "stepscope-devices"  # of the page, with its data


def _sizes(context: click.Context, option: click.Parameter, value: str | None) -> tuple[int, ...]:
    """`16,32,64`."""
    words = [word.strip() for word in (value or "").split(",") if word.strip()]
    if value is not None and not (words and all(word.isdecimal() and int(word) > 0 for word in words)):
        raise click.BadParameter(f"expected batch sizes as 16,32,64, found {value!r}")
    return tuple(int(word) for word in words)


@click.command(cls=MeasuringCommand, context_settings={"allow_interspersed_args": False})
@click.option("--at", metavar="N,N,…", callback=_sizes, help="Batch sizes to predict.")
@click.option(
    "--fits",
    "targets",
    multiple=True,
    metavar="24GB|DEVICE",
    help="Largest batch size that fits a capacity or a device.",
)
@click.option(
    "--on",
    "devices",
    metavar="H100,A100,…",
    help="Predict other devices, or cloud instances of the price table.",
)
@at_least_one("--samples", 1_000_000, "Number of samples for hours and prices (with --on).")
@at_least_one("--ranks", 1, "Also predict training on up to N devices (with --on).", show_default=False)
@above_zero("--bandwidth", 10.0, "Gbit/s between ranks (with --ranks).")
@click.option("--prices", metavar="FILE", help="Price table to use instead of the package's.")
@click.option(
    "--site", "choice", metavar="LINE", help="Which of several batch sizes: LINE, FILE:LINE or a name."
)
@click.option(
    "--points",
    type=click.IntRange(min=2),
    help="Number of batch sizes to measure. Default: 5, up to 8 if run time is not linear.",
)
@at_least_one("--rounds", 3, "Maximum number of rounds; fewer once times are stable.")
@click.option("--quick", is_flag=True, help="One round of very few steps, as in an editor.")
@click.option(
    "--estimate/--no-estimate",
    default=True,
    show_default=True,
    help="Without a GPU, also estimate memory without computing.",
)
@click.option("--find", is_flag=True, help="Only show which batch size would be used; run nothing.")
@above_zero("--timeout", 600.0, "Seconds before a run times out.")
@click.option("--python", metavar="PATH", help="Python interpreter that runs the script.")
@click.option("--in-place", is_flag=True, help="Run in the project itself: what the script writes is real.")
@click.option(
    "--html", "page", type=OutputFile(), metavar="OUT", help="Also write the interactive page, as one file."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "as_module", is_flag=True, help="ENTRY is the name of a module.")
@click.argument("entry", type=ScriptPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def batch(
    entry: str,
    arguments: tuple[str, ...],
    at: tuple[int, ...],
    targets: tuple[str, ...],
    choice: str | None,
    as_module: bool,
    as_json: bool,
    find: bool,
    page: str | None,
    devices: str | None,
    samples: int,
    ranks: int,
    bandwidth: float,
    prices: str | None,
    **how: Any,
) -> None:
    """Predict throughput and memory of a training script at any batch size.

    ENTRY is a training script with a recognizable batch size, or a file with the functions
    stepscope_model_provider, stepscope_input_provider and stepscope_iteration_provider. It is run a
    few times for a few steps, at batch sizes near its own. Each run sees a scratch view of the
    project, so nothing in the project changes.
    """
    capacities = [find_capacity(target) for target in targets]
    elsewhere = _elsewhere(devices, prices, Wanted(at, samples, ranks, bandwidth))
    module = entry if as_module else None
    opened = open_entry(module_file(entry) if as_module else entry, arguments, choice=choice, module=module)
    if find:
        line = f"{opened.site.where}: {opened.site.kind} {opened.site.name} = {opened.batch}"
        show_answer({"batch": opened.batch, "site": opened.site}, [line], as_json)
        return
    opened = _with_scratch(opened, how["in_place"])
    result, predicted = _profiled(opened, how, elsewhere)
    if page:
        capacity = capacities[0].bytes if capacities else None
        data = data_element(ELEMENT, batch_profile(result, capacity))
        data += data_element(DEVICES_ELEMENT, predicted) if predicted else ""
        write_text(Path(page), page_in_one(data, "batch.html"))
    fits = [result.fits(capacity) for capacity in capacities]
    (_print_json if as_json else _print_text)(result, at, fits, predicted)


def _elsewhere(devices: str | None, prices: str | None, wanted: Wanted) -> Elsewhere:
    """What predicts a result on the devices asked for; checked before anything is run."""
    targets = parse_targets(devices, read_prices(prices)) if devices is not None else ()

    def predicted(result: Result) -> DevicesAnswer | None:
        try:
            return project(result, targets, wanted) if targets else None
        except BatchError as error:  # what was measured is worth showing
            say(f"warning: {error}")
            return None

    return predicted


def _with_scratch(opened: Entry, in_place: bool) -> Entry:
    """Say which number is changed and what is run where, before anything is run."""
    scratch = plan_scratch(opened.path, opened.folder, in_place=in_place)
    say(f"found {opened.site.sentence}")
    say(f"running {Path(opened.path).name} several times, a few steps each, {scratch.sentence}")
    ask_before_running(scratch)
    return replace(opened, scratch=scratch)


def _profiled(opened: Any, how: dict[str, Any], elsewhere: Elsewhere) -> tuple[Result, DevicesAnswer | None]:
    """The result, and what it would be on other devices: the capture ends with the session."""
    plan = QUICK if how["quick"] else Plan(rounds=how["rounds"])
    plan = replace(plan, timeout_s=how["timeout"], estimate=plan.estimate and how["estimate"])
    if how["points"]:
        plan = replace(plan, points=how["points"], extra=0)
    with step_progress() as tell, Session(how["python"], tell) as session:
        result = session.profile_entry(opened, plan)
        return result, elsewhere(result)


def _print_json(
    result: Result, at: Sequence[int], fits: Sequence[Any], devices: DevicesAnswer | None
) -> None:
    facts = result.to_json(at) | ({"fits": fits} if fits else {})
    echo_json(facts | ({"devices": to_builtins(devices)} if devices else {}))


def _print_text(
    result: Result, at: Sequence[int], fits: Sequence[Any], devices: DevicesAnswer | None
) -> None:
    print_batch(terminal(), result, at, fits)
    if devices:
        print_devices(terminal(), devices)


# -- fits


class _FitsCommand(MeasuringCommand):
    """Takes `--on` right after the script, too, unless the script has such an option."""

    def _split(self, args: Sequence[str]) -> tuple[list[str], list[str], list[str]]:
        ours, positionals, rest = super()._split(args)
        count = 2 if positionals and rest[:1] == ["--on"] and not mentions(positionals[-1], "--on") else 0
        return ours + rest[:count], positionals, rest[count:]


@click.command(cls=_FitsCommand, context_settings={"allow_interspersed_args": False})
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
    capacities = [find_capacity(name.strip()) for name in devices.split(",")]
    opened = open_entry(entry, arguments, choice=choice)
    with step_progress() as tell, Session(python, tell) as session:
        result = session.memory_on_gpu(opened, capacities, timeout)
    found = [{**result.fits(one), "now": own_size(result, one)} for one in capacities]
    notes = result.profile.warnings
    facts = {"entry": result.entry.path, "site": opened.site, "fits": found, "warnings": notes}
    show_answer(facts, _lines(result, found), as_json)


def _lines(result: Result, found: Sequence[Mapping[str, Any]]) -> Iterator[str]:
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
