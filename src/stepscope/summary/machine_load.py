"""What is left of verdicts and findings where other processes used the machine."""

from __future__ import annotations

from dataclasses import replace

from stepscope.summary.facts import Verdict
from stepscope.trace.recorded_steps import QUIET

CANNOT_TELL = 0.6


def under_load(verdict: Verdict, share: float | None) -> Verdict:
    """The verdict, marked as uncertain or withheld where other processes used the machine.

    A step that its device limits is no shorter on a quiet machine.

    Args:
        verdict: of the recorded steps.
        share: of a core, as `core_share` gives it.

    Returns:
        `bound_by` is `unknown` for a verdict that is withheld.
    """
    if share is None or share >= QUIET or verdict.bound_by == "device":
        return verdict
    if share < CANNOT_TELL:
        sentence = "Cannot tell what limits the step, since other processes used the machine. "
        return Verdict("unknown", 0.0, f"{sentence}As recorded: {verdict.sentence}")
    return replace(verdict, sentence=f"{verdict.sentence} Other processes may be the cause.")


def certain_share(part: float, verdict: Verdict, share: float | None) -> float:
    """How much of the step a part takes at least, wherever the process waited for a core.

    Without a verdict nothing is certain. A step that its device limits is no shorter on a quiet
    machine. Else all the time without a core may have been in this part.

    Args:
        part: what it takes as recorded, a share of the step.
        verdict: as `under_load` left it.
        share: of a core, as `core_share` gives it.
    """
    if verdict.bound_by == "unknown":
        return 0.0
    if share is None or share >= QUIET or verdict.bound_by == "device":
        return part
    return max(part - (1 - share), 0.0) / share
