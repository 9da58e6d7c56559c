"""`stepscope verify`: apply a change to an unmodified script, and compare with its prediction."""

from typing import Any

import click

from stepscope.faces.terminal.options import MeasuringCommand, ScriptPath, ask_before_running, at_least_one
from stepscope.faces.terminal.output import show_answer
from stepscope.models.verify import MeasuredRuns, TrialComparison, TrialPlan, verify_change
from stepscope.models.verify.trials import script_scratch
from stepscope.models.verify.verify import parse_specs, verifiable_changes
from stepscope.record.script_runner import Program


class _Verify(MeasuringCommand):
    """Lists the changes after the options."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [
            (name, change.application.summary.replace("`", ""))
            for name, change in verifiable_changes().items()
            if change.application
        ]
        with formatter.section("Changes"):
            formatter.write_dl(rows)


_CLOSE = 0.1  # of the step: a prediction this close is one that came true; chosen


@click.command(cls=_Verify, context_settings={"allow_interspersed_args": False})
@at_least_one("--warmup", 5, "Training steps of each run that are not timed.")
@at_least_one("--steps", 10, "Training steps of each run to time.")
@at_least_one("--rounds", 3, "Runs without the change, and as many with it.")
@click.option(
    "--prefix",
    default="",
    metavar="WORDS",
    help="Words before the command of each process: `ip netns exec worker{rank}`.",
)
@click.option("--in-place", is_flag=True, help="Run in the project itself: what the script writes is real.")
@click.option("--quiet", is_flag=True, help="Do not show the script's output.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("change", metavar="CHANGE[:KEY=VALUE,…]")
@click.argument("script", type=ScriptPath())
@click.argument("arguments", metavar="[ARGS]...", nargs=-1, type=click.UNPROCESSED)
def verify(
    change: str,
    script: str,
    arguments: tuple[str, ...],
    as_module: bool,
    as_json: bool,
    quiet: bool,
    **plan: Any,
) -> None:
    """Run a training SCRIPT with and without a CHANGE, and compare with the prediction.

    The script is not modified: PyTorch applies the change. Join several changes by +, such as
    ddp:workers=2+compress. The script is recorded twice and runs several times, each time in a
    fresh process that ends after the requested steps. Each run sees a scratch view of the project,
    so nothing in the project changes. The script's output goes to stderr.
    """

    def show(label: str, line: str) -> None:
        if not quiet:
            click.echo(f"[{label}] {line}", err=True)

    def say(text: str) -> None:
        click.echo(f"stepscope: {text}", err=True)

    specs = parse_specs(change)
    program = Program(script, arguments, as_module)
    program.check()
    ask_before_running(script_scratch(program, plan["in_place"]))
    comparison = verify_change(program, specs, TrialPlan(**plan), show, say)
    show_answer(comparison.to_json(), _lines(comparison), as_json)


def _lines(answer: TrialComparison) -> list[str]:
    before, after = answer.before, answer.after
    rounds = len(before.rounds_ms)
    over = f" over {rounds} alternating rounds" if rounds > 1 else ""
    return [
        f"{'+'.join(answer.changes)}  {answer.script}",
        "",
        f"unchanged  {before.step_ms:10.3f} ms per step, {_spread(before)}{over}",
        f"measured   {after.step_ms:10.3f} ms, {answer.measured_speedup:.2f}x, {_spread(after)}",
        _predicted(answer),
        f"verdict    {_verdict(answer)}",
        "",
        *(
            f"applied    {name}: {', '.join(f'{key} {value}' for key, value in facts.items())}"
            for name, facts in answer.applied.items()
        ),
        *(["", "assumptions"] if answer.prediction else []),
        *(f"  {text}" for text in (answer.prediction.assumptions if answer.prediction else ())),
    ]


def _spread(runs: MeasuredRuns) -> str:
    return f"spread {runs.spread:.1%}" if len(runs.rounds_ms) > 1 else "one round, spread unknown"


def _predicted(answer: TrialComparison) -> str:
    if answer.prediction is None:
        return f"predicted  –  {answer.reason}"
    low, high = answer.prediction.range
    return (
        f"predicted  {answer.prediction.predicted_step_ms:10.3f} ms, {answer.prediction.speedup:.2f}x "
        f"({low:.3f} to {high:.3f} ms), {_error(answer.error or 0.0)}"
    )


def _error(error: float) -> str:
    return f"{abs(error):.1%} {'longer' if error > 0 else 'shorter'} than measured"


def _verdict(answer: TrialComparison) -> str:
    found = answer.measured_range
    if found is None:
        return "cannot tell: one round shows no noise; use more --rounds"
    between = f"{found[0]:.2f}x to {found[1]:.2f}x with 95 % confidence"
    if not answer.is_significant:
        return f"cannot tell: the difference is within the noise ({between}); use more --rounds"
    effect = "faster" if answer.measured_speedup > 1 else "slower"
    if answer.verdict == "contradicted":
        return f"{effect}, unlike the prediction ({between})"
    return f"{effect}{_agreement(answer)} ({between})"


def _agreement(answer: TrialComparison) -> str:
    """How the measured step compares with a prediction of the right direction."""
    if answer.verdict != "confirmed" or answer.prediction is None:
        return ""
    low, high = answer.prediction.range
    measured = answer.after.step_ms
    if low * (1 - _CLOSE) <= measured <= high * (1 + _CLOSE):
        return ", as predicted"
    gains_more = (measured < low) == (answer.measured_speedup > 1)
    return f", as predicted, but by {'more' if gains_more else 'less'}"
