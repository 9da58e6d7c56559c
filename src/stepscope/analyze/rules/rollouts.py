"""`rollouts`: playing or generating what is learned from takes longer than learning from it."""

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import sampled_place
from stepscope.analyze.rule_context import RuleContext, finding_of_part, share_of_run
from stepscope.trace.intervals import Intervals

WHAT = "Rollouts or generation take"
LEAST = 0.2  # of the run after its start-up, as for evaluation
ADVICE = (
    "Act for several environments or prompts in one call of the model. Use vectorized environments or a "
    "batch of prompts, under torch.inference_mode(), and step environments in processes of their own."
)
STEPPING = (
    "Compute what environments do for all of them at once, on whole arrays, instead of in Python loops. "
    "Or step environments in processes of their own."
)


def rollouts(context: RuleContext) -> Iterator[Finding]:
    """Rollouts or generation between training steps that take 20 % of the run or more.

    Silent if the file does not record it (captures of `stepscope run` of PyTorch do).
    """
    if not share_of_run(context, "rollout"):
        return
    calls = _calls(context)
    pauses = calls.ends[:-1], calls.starts[1:]
    trains = context.measures.stage_spans("backward").union(context.measures.stage_spans("optimizer"))
    steps = Intervals(*(times[trains.within(*pauses) == 0] for times in pauses))
    most, advice = (steps, STEPPING) if steps.total() > calls.total() else (calls, ADVICE)
    yield from finding_of_part(context, "rollout", WHAT, advice, LEAST, sampled_place(context, most))


def _calls(context: RuleContext) -> Intervals:
    """Where the recorded steps call the model at the place of most of the run's rollouts."""
    run = context.measures.summary.run
    places = [one for one in run.places if one.stage == "rollout"] if run else []
    names = [re.escape(f"{one.function} ({one.file}:{one.line})") for one in places[:1]]
    return context.measures.spans(context.search.find(rf"^stepscope\.\w+: ({'|'.join(names)})$"))
