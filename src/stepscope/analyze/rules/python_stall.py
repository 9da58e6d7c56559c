"""`python_stall`: Python keeps the training loop busy, and the device idles."""

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import LOOP, has_names, name_of_stall, place_of_stall, stalled_ranges
from stepscope.analyze.rule_context import RuleContext
from stepscope.facts.summary.numbers import rounded

CAUSE = "python"
EXPLAINS = ("host",)
NAMES = "Record with `stepscope run --stack` to see the functions."
LOADER = "loader workers, "
ADVICE = (
    (r"sleep", "Remove the sleep from the {loop}."),
    (
        r"(?i)logg|write|print|flush|tqdm|wandb|tensorboard|add_scalar",
        "Log less often, or hand the values to another thread.",
    ),
    (
        r"(?i)metric|accuracy|f1_score|confusion|sklearn",
        "Update metrics on the device, and compute them only every N steps.",
    ),
    (r"(?i)gc|collect", "Call gc.freeze() after setup and gc.collect() only every N steps."),
    (r"(?i)ema|average", "Update the moving average with torch._foreach_lerp_ on the device."),
    (r"", "Move this work out of the {loop}: to another thread, {loader}or to every N-th step."),
)


def python_stall(context: RuleContext) -> Iterator[Finding]:
    """A device that idles while Python keeps the training loop busy for 1 ms or more at a time.

    Silent below 5 % of the step, on a CPU (`cpu_latency` covers it), and while data loads.
    """
    if not context.measures.has_device or context.context_trace:
        return
    gaps = context.measures.idle("host").intersect(context.measures.stalls())
    stalled = stalled_ranges(context, gaps)
    idle = context.measures.recurring_ms(gaps)
    if context.measures.is_small(idle) or not len(stalled.rows):
        return
    name = name_of_stall(context, stalled)
    if name == LOOP and not stalled.spent.any():
        return  # nothing names what ran
    advice = next(advice for pattern, advice in ADVICE if re.search(pattern, name)).format(
        loop=context.loop, loader=LOADER if context.trains else ""
    )
    yield context.finding(
        f"Python stalls the step: the device idles {rounded(idle)} ms per step "
        f"({context.measures.share_of_window(gaps):.0%}). The loop runs nothing else then. "
        f"{place_of_stall(context, stalled, name)}.",
        advice if has_names(context, name) else f"{advice} {NAMES}",
        stalled.rows,
        context.gains.bound(idle, "at most this idle time"),
    )
