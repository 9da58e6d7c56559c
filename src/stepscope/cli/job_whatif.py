"""`stepscope whatif` for a folder of many ranks: changes to the whole job, from its sketches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from stepscope.cli.output import echo_json

if TYPE_CHECKING:
    from stepscope.ranks.folder import ManyRanks
    from stepscope.ranks.replay import Replay

_BASIS = "the sketches"
_OF_JOB = ("no_straggler", "bandwidth")


def answers(changes: Sequence[str]) -> bool:
    """Whether sketches show what these changes would do."""
    return all(text.partition(":")[0] in _OF_JOB for text in changes)


def print_job(many: ManyRanks, changes: Sequence[str], as_json: bool) -> None:
    """Print a prediction for all ranks of a job.

    Raises:
        ChangeError: if a change does not apply.
    """
    replay = many.job.replay
    for text in changes:
        replay = _changed(many, replay, text)
    measured = float(many.job.table.length.mean())
    before, after = many.job.replay.step_ms, replay.step_ms
    error = before / measured - 1
    if as_json:
        echo_json({
            "ranks": many.report.ranks, "changes": list(changes), "measured_step_ms": measured,
            "replayed_step_ms": before, "replay_error": error, "predicted_step_ms": after,
            "speedup": before / after, "basis": [_BASIS],
        })  # fmt: skip
        return
    click.echo(
        f"measured   {measured:10.3f} ms per step\n"
        f"replayed   {before:10.3f} ms, {error:+.2%}\n"
        f"predicted  {after:10.3f} ms, {before / after:.2f}x  {' '.join(changes) or 'no change'}\n"
        f"based on   {_BASIS} of {many.report.ranks} ranks\n\n"
        "assumptions\n"
        "  times are the mean of all ranks; a collective begins when the last rank arrives, and "
        "then takes as long as it did"
    )


def _changed(many: ManyRanks, replay: Replay, text: str) -> Replay:
    """A replay of the job after a change to all its ranks."""
    from stepscope.errors import ChangeError
    from stepscope.ranks.sketch_whatifs import job_with
    from stepscope.whatif import CHANGES, parse_request

    request = parse_request(text, CHANGES)
    factor = float(request.values.get("factor", 2.0))
    if factor <= 0:
        raise ChangeError(f"{text}: expected factor above 0, found {factor:g}")
    changed = job_with(many.job.table, replay, request.change.name, factor)
    if changed is None:
        raise ChangeError(f"{text}: the sketches of these ranks show no communication")
    return changed
