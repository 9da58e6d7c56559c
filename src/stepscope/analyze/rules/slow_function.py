"""`slow_function`: a function of the user's between the stages takes much of the step."""

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding, line_words
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.python_stalls import advice_if_blocked, blocked_of_loop, place_at
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.cpu_latency import PYTHON_OF_JAX
from stepscope.analyze.rules.repeated_module import SMALL_NS
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.device.one_off_costs import COMPILING
from stepscope.facts.summary.facts import StagePlace

CAUSE = "work_between_stages"
EXPLAINS = ("host", "cpu")
LEAST = 0.1  # of the step, as for operators between the stages
# As `sample`, `replay_buffer` or `next_batch`, but no `train_batch` nor `on_batch_end`.
DRAWS = re.compile(
    r"(?i)(^|[_. ])(sample|draw|replay)([_.]|$)|(^|[. ])((get|next|make)_)?(mini)?batch(es)?[.]?$"
)
DRAWING = (
    "Keep what it draws from in preallocated tensors, one for each field. Index them with random "
    "positions before anything is copied or converted, or draw the next batch in another thread."
)
OTHER = (
    "Replace loops over elements by operators on whole tensors, or do it every N steps. Or do it in "
    "another thread or process while the step runs."
)

COMPUTING = (
    "Compute once, before the loop, what does not change between steps (masks, tables, a graph's "
    "structure). Compute metrics every N steps. Of a large buffer change only the rows that are new, in "
    "place; leave what depends on the samples alone to the data loader."
)


def slow_function(context: RuleContext) -> Iterator[Finding]:
    """A function outside of forward, backward and the optimizer that takes 10 % of the step or more.

    Silent where the recording has no samples of the training loop (captures of `stepscope run` of
    PyTorch do), on devices, and where the samples are too few to tell.
    """
    if context.measures.has_device or context.context_trace or not context.trains:
        return
    operators = context.search.outermost(context.search.find(category="cpu_op", stage="other"))
    large = operators[context.events["duration_ns"][operators] >= SMALL_NS]
    compiling = context.measures.ms(context.search.find(COMPILING.pattern, on_device=False))
    for place in context.measures.summary.places:
        if place.stage != "other" or not place.samples:
            continue
        least = place.share * (1 - place.error_ms / place.ms)
        if least < LEAST or place.function == "<module>" or compiling > place.ms / 2:
            continue  # the loop itself, or its compiler: other rules name what it calls
        line = line_words(place.file, place.line, "", place.called)
        loops = context.by_framework(OTHER, jax=PYTHON_OF_JAX)
        plain = COMPUTING if context.measures.ms(large) > place.ms / 2 else loops
        advice = DRAWING if DRAWS.search(place.function) else plain
        if blocked := blocked_of_loop(context, place.share):
            advice = advice_if_blocked(context, blocked)
        yield context.finding_at(
            f"{place.function} takes about {rounded(place.ms)} ms per step ({place.share:.0%}). It runs "
            f"outside of forward, backward and the optimizer, in {line}.",
            advice,
            (place_at(place),),
            context.gains.bound(
                place.share * context.measures.steady_ms,
                "at most this time, by samples of the loop",
                besides=(called_ms(context, place) + place.error_ms) / place.ms,
                sure=MOSTLY_SAVED * (1 - place.error_ms / place.ms),
            ),
        )


def called_ms(context: RuleContext, place: StagePlace) -> float:
    """What functions take that are sampled by themselves, and that this one calls."""
    calls = re.compile(rf"{re.escape(place.function)}(\.<locals>\S*)? \({re.escape(place.file)}:\d+\)$")
    others = context.measures.summary.places
    return sum(one.ms for one in others if one.stage == place.stage and any(map(calls.match, one.called)))
