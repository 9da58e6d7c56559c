"""`slow_function`: a function of the user's between the stages takes much of the step."""

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding, Place, short_path
from stepscope.analyze.rule_context import RuleContext
from stepscope.facts.summary.numbers import rounded

CAUSE = "work_between_stages"
EXPLAINS = ("host", "cpu")
LEAST = 0.1  # of the step, as for operators between the stages
_DRAWS = re.compile(r"(?i)(^|_)(sample|draw|batch|batches|minibatch|replay)(_|$)|get_batch|next_batch")
DRAWING = (
    "Keep what it draws from in preallocated tensors, one for each field, and index them with random "
    "positions before anything is copied or converted; or draw the next batch in another thread while "
    "this step runs."
)
OTHER = (
    "Replace loops over elements by operators on whole tensors, do it every N steps, or in another "
    "thread or process while the step runs."
)


def slow_function(context: RuleContext) -> Iterator[Finding]:
    """A function outside of forward, backward and the optimizer that takes 10 % of the step or more.

    Silent where the recording has no samples of the training loop (captures of `stepscope run` of
    PyTorch do), on devices, and where the samples are too few to tell.
    """
    if context.measures.has_device or context.context_trace or not context.trains:
        return
    for place in context.measures.summary.places:
        surely = place.ms - place.error_ms
        if place.stage != "other" or not place.samples or surely < LEAST * context.measures.steady_ms:
            continue
        if place.function == "<module>":
            continue  # the loop itself: other rules name what it calls
        file = f"{short_path(place.file)}:{place.line}"
        yield context.finding_at(
            f"{place.function} takes about {rounded(place.ms)} ms per step ({place.share:.0%}). It runs "
            f"outside of forward, backward and the optimizer, in {file}.",
            DRAWING if _DRAWS.search(place.function) else OTHER,
            (Place(place.function, "other", "", place.file, place.line, place.function, 1.0, place.ms),),
            context.gains.bound(place.ms, "at most this time, by samples of the loop"),
        )
