"""`host_callbacks`: compiled functions of JAX that call back into Python."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded

EXPLAINS = ("synchronization", "host")
_CALLBACK = (
    r"^(debug|pure|io)_callback(\.\d+)*$|^debug_print(\.\d+)*$|^outside_call(\.\d+)*$"
    r"|python_[cg]pu_callback"
)


def host_callbacks(context: RuleContext) -> Iterator[Finding]:
    """Python functions that a compiled step calls: jax.debug.print, pure_callback, io_callback.

    Silent if the step calls none.
    """
    if not context.is_jax or context.context_trace:
        return
    rows = context.search.outermost(context.search.find(_CALLBACK))
    if not len(rows):
        return
    yield context.finding(
        f"The compiled step calls back into Python {context.times(rows)}, "
        f"{rounded(context.measures.ms(rows))} ms. The device's data are copied to the host for it.",
        "Return the value from the step and read it every N steps. Remove jax.debug.print and "
        "jax.debug.callback from timed code; write what pure_callback computes in jax.numpy.",
        rows,
        context.gains.without(rows, context.measures.ms(rows), "at most the time of the callbacks"),
    )
