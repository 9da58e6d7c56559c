"""Profiles of JAX that do not say what is forward, backward or optimizer: it is not guessed."""

from __future__ import annotations

import pytest
from facts import warning_codes

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

CALLS = """
main | 0 10    | PjitFunction(step) | cat=runtime
main | 2 8     | PjRtClient::Execute | cat=runtime
main | 20 30   | np.asarray(jax.Array) | cat=annotation
main | 50 60   | PjitFunction(step) | cat=runtime
main | 100 110 | PjitFunction(step) | cat=runtime
"""
OLD = "pool | {0} {1} | dot.{0} | cat=cpu_op scope=jit(step)/jit(main)/{2}"
RUNS = {
    "no operations": "pool | 10 40 | ThunkExecutor::Execute | cat=runtime",
    "operations without scopes": "pool | 10 40 | dot.3 | cat=cpu_op",
    "plain functions, whose transformations are not written": "\n".join(
        OLD.format(at, at + 5, "dot_general") for at in (10, 20, 60, 70)
    ),
}
KNOWN = {
    "scopes": "pool | 10 40 | dot.3 | cat=cpu_op scope=jit(step)/dot_general\n"
    "pool | 60 90 | dot.4 | cat=cpu_op scope=jit(step)/dot_general",
    "modules, which would show transformations": "\n".join(
        OLD.format(at, at + 5, "Dense/dot_general") for at in (10, 20, 60, 70)
    ),
    "ranges around the passes": "main | 12 20 | forward | cat=annotation\n"
    "main | 14 18 | PjitFunction(tanh) | cat=runtime\n"
    "main | 20 30 | backward | cat=annotation",
}


def stages_in_steps(trace: Trace, name: str = "") -> set[str]:
    rows = trace.events.rows()
    return {row["stage"] for row in rows if row["step"] is not None and name in row["name"]}


def test_of_a_profile_as_json_the_line_says_which_file_has_the_programs() -> None:
    trace = annotate(drawn_trace(CALLS + RUNS["no operations"], format="trace events"))
    rows = trace["warnings"].rows()
    (message,) = (row["message"] for row in rows if row["code"] == "unknown_passes")
    assert message.endswith("open the .xplane.pb that JAX wrote next to it")


@pytest.mark.parametrize("run", RUNS.values(), ids=RUNS)
def test_the_loop_is_other_and_a_line_says_why(run: str) -> None:
    trace = annotate(drawn_trace(CALLS + run))
    assert stages_in_steps(trace) == {"other"}
    assert warning_codes(trace)["unknown_passes"] == 1


def test_the_scope_of_one_of_many_programs_does_not_make_the_others_known() -> None:
    small = "pool | 12 13 | broadcast | cat=cpu_op scope=jit(ones)/broadcast_in_dim"
    trace = annotate(drawn_trace(CALLS + small))
    assert stages_in_steps(trace, "PjitFunction") == {"other"}
    assert "unknown_passes" in warning_codes(trace)


@pytest.mark.parametrize("known", KNOWN.values(), ids=KNOWN)
def test_what_the_profile_says_is_shown(known: str) -> None:
    trace = annotate(drawn_trace(CALLS + known))
    assert "forward" in stages_in_steps(trace)
    assert "unknown_passes" not in warning_codes(trace)
