"""`stepscope calibrate`: measure what predictions for a CPU need to know of this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.options import takes_trace

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@click.command()
@takes_trace
@click.option("--afresh", is_flag=True, help="Measure again what is known already.")
@click.option("--json", "as_json", is_flag=True, help="All times, as JSON.")
def calibrate(trace: Trace, afresh: bool, as_json: bool) -> None:
    """Time operators alone on this machine, for what-ifs of steps that a CPU computes.

    The operators of the trace, in 32 bits and in 16, casts, fused optimizers, batches from a worker
    and all-reduces; about fifteen seconds. What was measured is kept and used by `stepscope whatif`
    and `stepscope verify`.
    """
    from stepscope.calibration import calibrate as measure
    from stepscope.calibration.calibration import calibration_path

    calibration = measure(trace, afresh=afresh)
    if calibration_path(calibration.machine) is None:
        click.echo("! not kept, as $STEPSCOPE_CACHE is off: no other command finds it", err=True)
    if as_json:
        echo_json(calibration.to_json())
        return
    known = sum(half is not None for _, half in calibration.operators.values())
    click.echo(f"{calibration}: {known} of {len(calibration.operators)} operators in 16 bits too")
