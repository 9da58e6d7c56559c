"""`first_use`: costs of setup, first use and teardown, which later steps do not pay."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import plural, rounded

NOTICE = True


def first_use(context: RuleContext) -> Iterator[Finding]:
    """Setup, loading, first launches, benchmarks, compilation and teardown in recorded steps.

    Other findings exclude their time. One-off is what by its name comes once, or takes far longer
    than such a call usually does, and what later steps do not repeat.

    Silent below 5 % of the recorded time. It never has a gain.
    """
    rows = context.measures.first_use
    spent = context.measures.spans(rows).total() / 1e6
    if not len(rows) or spent < LEAST_SHARE * context.measures.steady_ms * context.step_count:
        return
    yield context.finding(
        f"One-off costs take {rounded(spent)} ms of the recorded steps ({plural(len(rows), 'call')}). These "
        "are setup, first use of kernels and functions, or teardown. Other findings do not count this time.",
        "Nothing needs to change: later steps do not pay this cost. To exclude it, "
        "record after more warm-up steps.",
        rows,
        context.gains.bound(0.0, "later steps do not pay it"),
    )
