"""`stepscope calibrate`: benchmark this CPU for predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.faces.terminal.output import show_answer
from stepscope.faces.terminal.source import takes_trace

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@click.command()
@takes_trace
@click.option("--afresh", is_flag=True, help="Measure everything again.")
@click.option("--json", "as_json", is_flag=True, help="Print all times as JSON.")
def calibrate(trace: Trace, afresh: bool, as_json: bool) -> None:
    """Benchmark this CPU, for predictions of steps that it computes.

    Times the operators of the trace in 32 and 16 bits, casts, fused optimizers, data-loading
    workers and all-reduces: about fifteen seconds. `stepscope whatif` and `stepscope verify` use
    the result. What other programs disturbed is repeated, and measured again the next time.
    """
    from stepscope.models.calibration import calibrate as measure
    from stepscope.models.calibration.calibration import calibration_path

    calibration = measure(trace, afresh=afresh)
    if calibration_path(calibration.machine) is None:
        click.echo("! not saved, as $STEPSCOPE_CACHE is off: only this run has it", err=True)
    if calibration.is_disturbed:
        click.echo(
            f"! {calibration.load}, so times may be too long; run this again when other programs have ended",
            err=True,
        )
    known = sum(half is not None for _, half in calibration.operators.values())
    line = f"{calibration}: {len(calibration.operators)} operators timed, {known} of them in 16 bits"
    show_answer(calibration.to_json(), [line], as_json)
