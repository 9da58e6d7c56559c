"""`rollouts`: playing or generating what is learned from takes longer than learning from it."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext, finding_of_part

LEAST = 0.2  # of the run after its start-up, as for evaluation
ADVICE = (
    "Act for several environments or prompts in one call of the model. Use vectorized environments or a "
    "batch of prompts, under torch.inference_mode(), and step environments in processes of their own."
)


def rollouts(context: RuleContext) -> Iterator[Finding]:
    """Rollouts or generation between training steps that take 20 % of the run or more.

    Silent if the file does not record it (captures of `stepscope run` of PyTorch do).
    """
    yield from finding_of_part(context, "rollout", "Rollouts or generation take", ADVICE, LEAST)
