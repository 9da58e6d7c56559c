"""`stepscope verify`: make a change to an unmodified script, and compare with its prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from stepscope.cli.facts import echo_json
from stepscope.cli.paths import NamedPath
from stepscope.cli.script import tell_of_options_behind

if TYPE_CHECKING:
    from stepscope.verify import Comparison, Measured


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--warmup", type=click.IntRange(min=1), default=5, show_default=True,
              help="Training steps of each run to let pass first.")  # fmt: skip
@click.option("--steps", type=click.IntRange(min=1), default=10, show_default=True,
              help="Training steps of each run to time.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True,
              help="Runs without the change, and as many with it, in turn.")  # fmt: skip
@click.option("--prefix", default="", metavar="WORDS",
              help="Put before each process of many: `ip netns exec worker{rank}`.")  # fmt: skip
@click.option("--quiet", is_flag=True, help="Do not show what the script prints.")
@click.option("--json", "as_json", is_flag=True, help="The same facts as JSON.")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@click.argument("change", metavar="CHANGE[:KEY=VALUE,…]")
@click.argument("script", type=NamedPath())
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
    """Run a training SCRIPT, unmodified, with and without a CHANGE; compare with its prediction.

    CHANGE is what PyTorch can do by itself: amp (autocast to bfloat16), fused_optimizer,
    dataloader:workers=N, compile, and in N local gloo processes ddp:workers=N, zero:workers=N or
    fsdp:workers=N,unit=GLOB; several are joined by +, as ddp+compress (gradients in 16 bits). The
    script is recorded twice, and runs several times in turn, each time in a fresh process that ends
    after the steps asked for. What it prints goes to stderr.
    """
    from stepscope.verify import Plan, Script, verify_change
    from stepscope.verify.requests import parse_wishes

    def show(label: str, line: str) -> None:
        if not quiet:
            click.echo(f"[{label}] {line}", err=True)

    def say(text: str) -> None:
        click.echo(f"stepscope: {text}", err=True)

    if not as_module:
        tell_of_options_behind(script, arguments)
    wishes = parse_wishes(change)
    comparison = verify_change(
        Script(script, arguments, as_module), wishes, Plan(**plan), show, say
    )
    if as_json:
        echo_json(comparison.to_json())
        return
    for line in _lines(comparison):
        click.echo(line)


def _lines(answer: Comparison) -> list[str]:
    before, after = answer.before, answer.after
    rounds = len(before.rounds_ms)
    over = f" over {rounds} rounds in turn" if rounds > 1 else ""
    return [
        f"{'+'.join(answer.changes)}  {answer.script}",
        "",
        f"unchanged  {before.step_ms:10.3f} ms a step, {_spread(before)}{over}",
        f"measured   {after.step_ms:10.3f} ms, {answer.measured_speedup:.2f}x, {_spread(after)}",
        _predicted(answer),
        "",
        *(f"applied    {name}: {_facts(facts)}" for name, facts in answer.applied.items()),
        *_assumed(answer),
    ]


def _spread(runs: Measured) -> str:
    return f"spread {runs.spread:.1%}" if len(runs.rounds_ms) > 1 else "one round, spread unknown"


def _predicted(answer: Comparison) -> str:
    if answer.prediction is None:
        return f"predicted  –  {answer.reason}"
    sign = "" if answer.right_sign else ", the wrong way"
    low, high = answer.prediction.range
    return (
        f"predicted  {answer.prediction.predicted_step_ms:10.3f} ms, "
        f"{answer.prediction.speedup:.2f}x "
        f"({low:.3f} to {high:.3f} ms), {answer.error:+.1%} off{sign}"
    )


def _facts(facts: Any) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _assumed(answer: Comparison) -> list[str]:
    if answer.prediction is None:
        return []
    return ["", "assumed", *(f"  {text}" for text in answer.prediction.assumptions)]
