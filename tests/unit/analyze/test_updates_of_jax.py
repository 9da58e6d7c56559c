"""`optimizer_loop` in JAX: what updates weights counts, not what is done to their gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.analyze import RULES, Finding, RuleContext, apply_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import INPUTS, KERNEL_KINDS, ORIGINS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

BACKWARD = "jit(step)/vmap(transpose(jvp()))/dot_general"
PRIMITIVES = {"clip": "vmap()/mul", "update": "sub", "merged": "reduce_sum", "psum": "psum"}


def step(operations: list[str], takes: Mapping[str, bool]) -> Trace:
    """One step of a backward pass and operations of 10 us each, `KIND.NUMBER`.

    Args:
        operations: in order; the kinds are those of `PRIMITIVES`.
        takes: whether operations of a kind take a weight, in addition to its gradient.
    """
    lines = [
        "main | 0 10 | PjitFunction(step) | cat=runtime",
        f"pool | 10 1000 | dot | cat=cpu_op corr=1 scope={BACKWARD}",
    ]
    for number, name in enumerate(operations):
        scope = f"jit(step)/{PRIMITIVES[name.partition('.')[0]]}"
        begin = 1000 + 10 * number
        lines.append(f"pool | {begin} {begin + 10} | {name} | cat=cpu_op corr=1 scope={scope}")
    trace = drawn_trace("\n".join(lines), framework="jax")
    names = ["dot", *operations]
    count = len(names)
    origin = [names.index(one) if one in names else -1 for one in trace.events.text("name")]
    origins = {
        "first": range(count),
        "scope": Text.of([""] * count),
        "frame": [-1] * count,
        "share": [1.0] * count,
    }
    weights = [place for place, one in enumerate(names) if takes.get(one.partition(".")[0])]
    taken = {
        "first": [*weights, *range(1, count)],
        "argument": Text.of(["params"] * len(weights) + [None] * (count - 1)),
        "scope": Text.of([None] * len(weights) + [BACKWARD] * (count - 1)),
        "frame": [-1] * (len(weights) + count - 1),
    }
    exchanges = trace.events.text("name").where(lambda name: name.startswith("psum"))
    kind = np.where(exchanges, KERNEL_KINDS.index("communication"), -1)  # as XLA's program says
    kinds = Text(kind.astype(np.int8), KERNEL_KINDS)
    trace = trace.with_events(origin=np.array(origin), kind=kinds)
    return annotate(trace.with_table(Table(ORIGINS, origins)).with_table(Table(INPUTS, taken)))


def found(trace: Trace) -> Finding | None:
    findings = apply_rules(RuleContext(trace), RULES)
    return next((one for one in findings if one.rule == "optimizer_loop"), None)


def numbered(kind: str, count: int) -> list[str]:
    return [f"{kind}.{number}" for number in range(count)]


def test_clipping_of_gradients_does_not_count() -> None:
    """The update of 40 weights does, for what it takes itself."""
    trace = step([*numbered("clip", 50), *numbered("update", 40)], {"update": True})
    finding = found(trace)
    assert finding is not None
    assert "40 operators per step" in finding.what
    assert finding.gain.ms == 0.4
    assert {one.name.partition(".")[0] for one in finding.evidence} == {"update"}


def test_silent_where_only_clipping_has_many_operations() -> None:
    trace = step([*numbered("clip", 50), *numbered("update", 20)], {"update": True})
    assert found(trace) is None


def test_an_update_that_xla_merged_with_a_sum_over_examples_does_not_count() -> None:
    """It takes a weight too, and reads the gradients of all examples."""
    assert found(step(numbered("merged", 50), {"merged": True})) is None


def test_an_exchange_of_gradients_is_no_update() -> None:
    """XLA's CPU backend exchanges on the threads that compute, and may have merged weights into it."""
    both = step([*numbered("psum", 4), *numbered("update", 40)], {"psum": True, "update": True})
    finding = found(both)
    assert finding is not None
    assert "40 operators per step" in finding.what


def test_all_operations_count_where_it_is_not_known_what_they_take() -> None:
    finding = found(step(numbered("clip", 50), {}))
    assert finding is not None
    assert "50 operators per step" in finding.what
