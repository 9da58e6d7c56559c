"""`missing_donation`: arguments of a jitted step whose memory its results could take over."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.jax.calls import CALL
from stepscope.facts.annotate.jax.frames import frame_rows, frames_of_events
from stepscope.trace.table import Table

NOTICE = True
LEAST_BYTES = 1 << 20  # of the arguments
LEAST_SHARE = 0.1  # of the arguments
OLD = {True: "parameters, optimizer state", False: "a cache of keys and values"}


def missing_donation(context: RuleContext) -> Iterator[Finding]:
    """Jitted functions of JAX that return updated arguments in new memory.

    Silent below 1 MiB and below a tenth of the arguments, where everything that comes back in the
    same shape is donated, for functions that return gradients, for functions of JAX itself
    (`jnp.clip`), and for functions that the steps do not call.
    """
    programs = context.trace.metadata.properties.get("programs") if context.is_jax else None
    if not isinstance(programs, dict) or context.context_trace:
        return
    calls = context.search.outermost(context.search.find(CALL.pattern, on_device=False))
    names = {row: CALL.sub(r"\1", context.search.name(row)) for row in calls.tolist()}
    for name in dict.fromkeys(names.values()):
        known = programs.get(f"jit_{name}", {})
        size, whole = known.get("could_donate_bytes", 0), known.get("argument_bytes", 0)
        is_small = size < max(LEAST_BYTES, LEAST_SHARE * whole)
        if is_small or _returns_gradients(context, name) or _is_of_jax(context, name):
            continue
        rows = calls[[names[row] == name for row in calls.tolist()]]
        yield context.finding(
            f"{name} returns {rounded(size / 1e6, 4)} MB of its arguments' shapes in new memory. "
            "The old values stay allocated meanwhile.",
            "Pass donate_argnums or donate_argnames to jax.jit if the program does not use the old "
            f"values again. Such values are {OLD[context.trains]}.",
            rows,
            context.gains.bound(0.0, f"up to {rounded(size / 1e6, 4)} MB of memory, no time"),
        )


def _returns_gradients(context: RuleContext, name: str) -> bool:
    """Whether a function takes gradients and updates nothing: the update still needs its arguments.

    Gradients have the shapes of the weights.
    """
    events = context.trace.events
    own = events.text("scope").where(lambda scope: scope.startswith(f"jit({name})/"))
    stage = events.text("stage")
    takes, updates = (bool((own & stage.mask(one)).any()) for one in ("backward", "optimizer"))
    return takes and not updates


def _is_of_jax(context: RuleContext, name: str) -> bool:
    """Whether a function is JAX's own, which leaves no frame: only those around its call."""
    scopes = context.trace.events.text("scope")
    own = scopes.where(lambda scope: scope.startswith(f"jit({name})/"))
    used = np.unique(frames_of_events(context.trace)[own])
    around = _functions_around(context.trace["frames"], used[used >= 0].tolist())
    return bool(around) and name not in around


def _functions_around(frames: Table, rows: list[int]) -> set[str]:
    """The names of the functions in which some frames are."""
    table, seen = frame_rows(frames), set[int]()
    for row in rows:
        while row >= 0 and row not in seen:
            seen.add(row)
            row = table[row].above
    return {table[row].name for row in seen}
