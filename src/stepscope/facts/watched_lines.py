"""What lines of the program took in parts of a watched run, by the samples of its threads."""

from pathlib import PurePath

import numpy as np

from stepscope.base.arrays import Array, Floats, Mask
from stepscope.read.watched_run import SampledLine, WatchedPlace, WatchedRun
from stepscope.trace.row_order import running_span

_MOST_PARTS = 16  # chosen: of 220 samples of half a step the share is then known to 2 %, without to 7 %
_FEWEST_SAMPLES = 8  # chosen: of a line with half of them, the share is known to a third


def line_shares(run: WatchedRun, asked: Mask, role: str = "") -> Floats:
    """The share of each line in the time of these samples of a role; nothing where they are too few."""
    samples, lasted = role_samples(run, asked, role)
    shares: Floats = np.bincount(samples["line"], lasted, len(run.lines)) / max(lasted.sum(), 1)
    return shares


def role_samples(run: WatchedRun, asked: Mask, role: str) -> tuple[Array, Floats]:
    """The samples of a role, and how long each of those asked for lasted, ns; none where they are too few.

    A sample counts as long as it is away from its neighbors: without a core of its own the sampler
    takes fewer of a thread that works than of one that waits. Each part of the steps, from begin to end,
    has as much of their time: where in a step samples fall is chance.
    """
    of_role = np.array([line.role == role for line in run.lines], dtype=bool)[run.samples["line"]]
    if np.count_nonzero(of_role & asked) < _FEWEST_SAMPLES:
        return run.samples[:0], np.zeros(0)
    samples = run.samples[of_role]
    ns, steps = samples["ns"], run.steps
    lasted: Floats = np.gradient(ns.astype(float)).clip(0) * asked[of_role]
    at = running_span(steps["begin_ns"], steps["begin_ns"] + steps["wall_ns"], ns)
    inside = (at >= 0) & (lasted > 0)
    count = max(min(int(np.count_nonzero(inside)) // _FEWEST_SAMPLES, _MOST_PARTS), 1)
    begun = steps[at[inside]]
    part = np.minimum((count * ((ns[inside] - begun["begin_ns"]) / begun["wall_ns"])).astype(int), count - 1)
    sums = np.bincount(part, lasted[inside], count)
    lasted[inside] *= sums.sum() / max(np.count_nonzero(sums), 1) / sums[part]
    return samples, lasted


def line_ms(run: WatchedRun, steps: Array, role: str = "") -> Floats:
    """What each line takes of a step on average, ms; nothing where these steps have too few samples."""
    shares = line_shares(run, during(steps, run.samples["ns"]), role)
    return shares * 1e-6 * float(steps["wall_ns"].mean()) if len(steps) else shares


def during(steps: Array, ns: Array) -> Mask:
    """Which moments are inside of one of these steps."""
    begins = steps["begin_ns"]
    inside: Mask = running_span(begins, begins + steps["wall_ns"], ns) >= 0
    return inside


def place_text(place: WatchedPlace | SampledLine) -> str:
    return f"{place.function} at {PurePath(place.file).name}:{place.line}" if place.file else ""
