"""`pipeline_bubble`: the stages of a pipeline wait for each other."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext

CAUSE = "communication"
EXPLAINS = ("communication",)
WHY = "at most: with more micro-batches or even stages, whichever saves more"


def pipeline_bubble(context: RuleContext) -> Iterator[Finding]:
    """A pipeline with few micro-batches, or with stages of different length.

    Silent for fewer than two ranks in the trace, if they do not send to each other, and if neither
    more micro-batches nor even stages would save 5 % of the step.
    """
    pipeline = context.job.pipeline if context.job else None
    rows = context.search.find(category="communication", on_device=context.measures.has_device)
    if pipeline is None or not pipeline.advice or not len(rows):
        return
    saved = max(pipeline.saved_by_more_ms, pipeline.saved_by_even_ms)
    if not context.measures.is_small(saved):
        yield context.finding(pipeline.sentence, pipeline.advice, rows, context.gains.bound(saved, WHY))
