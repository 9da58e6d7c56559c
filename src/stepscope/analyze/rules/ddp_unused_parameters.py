"""`ddp_unused_parameters`: DDP searches the graph for unused parameters in every step."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

CAUSE = "communication"
_SEARCH = r"search_unused_parameters"
LIBRARIES = {
    "transformers": "Set ddp_find_unused_parameters=False in TrainingArguments.",
    "lightning": "Use strategy='ddp' instead of 'ddp_find_unused_parameters_true'.",
    "accelerate": "Pass DistributedDataParallelKwargs(find_unused_parameters=False).",
}


def ddp_unused_parameters(context: RuleContext) -> Iterator[Finding]:
    """DistributedDataParallel with find_unused_parameters=True, which searches the graph each step.

    Silent below 1 % of the step.
    """
    rows = context.search.outermost(context.search.find(_SEARCH, on_device=False))
    if not len(rows):
        return
    yield context.finding(
        f"DistributedDataParallel searches for unused parameters in every step, "
        f"{rounded(context.measures.ms(rows))} ms.",
        context.advice(
            "If every parameter gets a gradient, create DistributedDataParallel with "
            "find_unused_parameters=False; if the same ones never do, add static_graph=True.",
            **LIBRARIES,
        ),
        rows,
        context.gains.scaled(rows, 0.0, "if there were no search"),
        patch=context.patch("ddp", find_unused_parameters=None),
    )
