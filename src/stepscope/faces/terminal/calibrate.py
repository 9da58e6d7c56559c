"""`stepscope calibrate`: benchmark this CPU, or its GPU, for predictions."""

from dataclasses import asdict

import click

from stepscope.faces.terminal.output import say, show_answer
from stepscope.faces.terminal.source import takes_trace
from stepscope.facts.annotate.links.launches import device_work
from stepscope.facts.annotate.steps.step_table import require_steps
from stepscope.models.calibration.calibration import calibrate as measure
from stepscope.models.calibration.calibration import calibration_path
from stepscope.models.calibration.device_calibration import calibrate_device, calibrated_share
from stepscope.trace.trace import Trace

_NOT_SAVED = "! not saved, as $STEPSCOPE_CACHE is off: only this run has it"


@click.command()
@takes_trace
@click.option("--afresh", is_flag=True, help="Measure everything again.")
@click.option("--json", "as_json", is_flag=True, help="Print all times as JSON.")
def calibrate(trace: Trace, afresh: bool, as_json: bool) -> None:
    """Benchmark the machine that recorded FILE, for predictions of its steps.

    If FILE has device work, this times its operators on the GPU in FP32, TF32 and 16 bits, those
    with most device time first, for at most two minutes. All traces of this GPU and version of
    torch share the result. Otherwise it times operators in 32 and 16 bits, casts, fused optimizers,
    data-loading workers and all-reduces, for about fifteen seconds. Disturbed measurements are
    repeated. `stepscope whatif` and `stepscope verify` use the result.
    """
    require_steps(trace)
    (_of_device if device_work(trace).any() else _of_cpu)(trace, afresh, as_json)


def _of_device(trace: Trace, afresh: bool, as_json: bool) -> None:
    calibration = calibrate_device(trace, afresh=afresh)
    if calibration.path is None:
        say(_NOT_SAVED)
    share = calibrated_share(trace, calibration)
    line = (
        f"{calibration}: {len(calibration.operators)} operators timed, with {share:.0%} of the device "
        "time of forward and backward in this trace"
    )
    show_answer({**asdict(calibration), "share_of_device_time": share}, [line], as_json)


def _of_cpu(trace: Trace, afresh: bool, as_json: bool) -> None:
    calibration = measure(trace, afresh=afresh)
    if calibration_path(calibration.machine) is None:
        say(_NOT_SAVED)
    if calibration.is_disturbed:
        say(f"! {calibration.load}, so times may be too long; run this again when other programs have ended")
    known = sum(half is not None for _, half in calibration.operators.values())
    line = f"{calibration}: {len(calibration.operators)} operators timed, {known} of them in 16 bits"
    show_answer(calibration.to_json(), [line], as_json)
