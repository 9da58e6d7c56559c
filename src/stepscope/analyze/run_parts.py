"""Findings on parts of the whole run, which the recorded steps may not show."""

from stepscope.analyze.finding import Finding, Place
from stepscope.analyze.rule_context import RuleContext
from stepscope.facts.summary.facts import RunPlace


def share_of_run(context: RuleContext, stage: str) -> float | None:
    """The share of the run after its start-up that a stage of it takes; None if it was not measured."""
    run = context.measures.summary.run
    if context.context_trace or run is None or not run.steps or run.after_start_up <= 0:
        return None
    return run.shares.get(stage, 0.0) / run.after_start_up


def finding_of_part(context: RuleContext, stage: str, what: str, advice: str, least: float) -> Finding | None:
    """The finding that a stage of the run takes too much of it; None below `least`, a share of the run.

    Args:
        what: the part and a verb, such as `Evaluation takes`.
    """
    share, run = share_of_run(context, stage), context.measures.summary.run
    if share is None or run is None or share < least:
        return None
    run_ms = context.measures.run_ms
    places = [
        _place(one, 1e3 * run.seconds / run.steps, run.steps) for one in run.places if one.stage == stage
    ]
    places = places or [Place(stage, stage, "", "", None, "", 0.0, share * run_ms)]
    where = f", most in {places[0].short}" if places[0].short else ""
    gain = context.gains.of_run(share * run_ms, "at most this time")
    sentence = f"{what} {share:.0%} of the run after its start-up{where}."
    return context.finding_of_run(sentence, advice, tuple(places), gain)


def _place(place: RunPlace, run_ms: float, steps: int) -> Place:
    """Where a stage of the run begins; `run_ms` is the whole run per step."""
    count, spent_ms = place.count / steps, place.share * run_ms
    return Place(place.function, place.stage, "", place.file, place.line, place.function, count, spent_ms)
