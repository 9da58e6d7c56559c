"""Why a requested rank or step cannot be shown, and which ones can."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.annotate.steps.steps import ranks_with_steps
from stepscope.trace.trace import Trace


def missing_steps(trace: Trace, rank: int, step: int | None) -> str:
    """The message for a rank and step, any step for None, that a trace does not have."""
    if step is None or rank not in ranks_with_steps(trace):
        return no_such_rank(trace, rank)
    return no_such_steps(trace, rank, f"step {step}")


def no_such_rank(trace: Trace, rank: int) -> str:
    """The message for a rank that has no steps.

    Example: `there is no rank 9; the trace has 0 to 7`.
    """
    return f"there is no rank {rank}; the trace has {number_list(ranks_with_steps(trace))}"


def no_such_steps(trace: Trace, rank: int, wanted: str) -> str:
    """The message for steps that a rank does not have.

    Args:
        trace: an annotated trace.
        rank: a rank that has steps.
        wanted: such as `step 30`.
    """
    known = trace["steps"]["step"][trace["steps"]["rank"] == rank].tolist()
    return f"rank {rank} has no {wanted}; it has {number_list(known)}"


def number_list(numbers: Sequence[int]) -> str:
    """Ascending numbers as text, runs of three and more by their ends: `0, 1, 5 to 7`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(
        f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
    )
