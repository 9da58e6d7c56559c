"""How much of a core the recorded process got, and what that leaves of verdicts and findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from stepscope.summary.facts import Verdict

QUIET = 0.95  # of a core; with less, times are visibly longer than on a quiet machine
CANNOT_TELL = 0.6


def core_share(capture: Mapping[str, Any]) -> float | None:
    """The share of a core that the training thread got of the time in which it could run.

    Time in which it waits for a device, data or other processes of its own does not count. Where
    it waited for a core in a few steps alone, the share of the typical one counts.

    Args:
        capture: the manifest of a capture.

    Returns:
        0 to 1; None where it was not measured.
    """
    times = capture.get("recorded_steps") or {}
    elapsed, queued = times.get("elapsed_ns"), times.get("queued_ns")
    if not elapsed or queued is None:
        return None
    typical: float = times.get("cpu_ns", 0) / max(times.get("median_ns", 0), 1)
    over_all: float = 1 - queued / elapsed
    return max(over_all, min(typical, 1.0))


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


def load_warning(capture: Mapping[str, Any]) -> str:
    """One line on how other processes slowed the recorded steps; empty if they did not."""
    share = core_share(capture)
    if share is None or share >= QUIET:
        return ""
    times = capture["recorded_steps"]
    text = f"this process got {share:.0%} of a core: other processes used the machine"
    if cpu := times.get("cpu_ns"):
        elapsed = times["median_ns"] / 1e6
        text += f"; a recorded step has {cpu / 1e6:.4g} ms of CPU time in {elapsed:.4g} ms"
    return text
