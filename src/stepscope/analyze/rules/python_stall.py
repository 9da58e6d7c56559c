"""`python_stall`: Python keeps the training loop busy, and the device idles."""

import re
from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.python_stalls import LOOP, has_names, name_of_stall, place_of_stall, stalled_ranges
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

CAUSE = "python"
EXPLAINS = ("host",)
NAMES = "Record with `stepscope run --stack` to see the functions."
LOADER = "loader workers, "
_PLACE = re.compile(r"(?<!\S)\S*\.py:\d+")  # a path of the user's is no evidence of what runs
# By whole words: `remap`, `symmetric` and `collect_rollouts` are none of these.
ADVICE = (
    (r"(?<![a-z])sleep", "Remove the sleep from the {loop}."),
    (
        r"(?<![a-z])(logg|write|print|flush|tqdm)|Logg|Writer|wandb|tensorboard|add_scalar",
        "Log less often, or hand the values to another thread.",
    ),
    (
        r"(?<![a-z])metric|Metric|torchmetrics|accuracy|Accuracy|f1_score|confusion|sklearn",
        "Update metrics on the device, and compute them only every N steps.",
    ),
    (
        r"(?<![a-z])gc(?![a-z])|<built-in \w+ collect",
        "Call gc.freeze() after setup and gc.collect() only every N steps.",
    ),
    (
        r"(?<![a-z])ema(?![a-z])|E(ma|MA)(?![a-z])|moving_average|MovingAverage|swa_utils",
        "Update the moving average with torch._foreach_lerp_ on the device.",
    ),
    (r"<.*\b(_thread|select|_socket|_queue)\.", "Find what it waits for, and do that in advance."),
    (r"", "Move this work to the device, another thread, {loader}or every N-th step of the {loop}."),
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
    what = _PLACE.sub("", name)
    advice = next(advice for pattern, advice in ADVICE if re.search(pattern, what)).format(
        loop=context.loop, loader=LOADER if context.trains else ""
    )
    long = f"{rounded(idle)} ms per step ({context.measures.share_of_window(gaps):.0%})"
    known = has_names(context, name)
    subject = "Python stalls the step" if known else "The step stalls"
    then = f"else then. {place_of_stall(context, stalled, name)}" if known else "that is recorded then"
    yield context.finding(
        f"{subject}: the device idles {long}. The loop runs nothing {then}.",
        advice if known else f"Find out what the CPU does there. {NAMES}",
        stalled.rows,
        context.gains.bound(idle, "at most this idle time"),
        limit="critical" if known else "warning",  # no fix is known
    )
