"""`pageable_copies`: batches are copied from memory that the device cannot read by itself."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.subject import Rows, Subject, glob


def pageable_copies(subject: Subject) -> Iterator[Finding]:
    """Copies from pageable host memory: they go through a staging buffer, and the CPU waits.

    Silent where copies come from pinned memory, take less than 1 % of the step, or the recorder
    does not tell the kind of memory (AMD).
    """
    rows = subject.find(r"Memcpy HtoD \(Pageable", on_device=True)
    if not len(rows):
        return
    volume = np.maximum(subject.events["bytes"][rows], 0).sum() / subject.count
    size = f" ({volume / 1e6:.3g} MB)" if volume else ""
    yield subject.finding(
        f"{subject.calls(rows):.4g} copies a step come from pageable host memory{size}.",
        "Pin the memory and do not wait: DataLoader(pin_memory=True) and "
        "batch.to(device, non_blocking=True).",
        rows,
        _gain(subject, rows),
    )


def _gain(subject: Subject, rows: Rows) -> Gain:
    """What copies that cost nothing would give back, or the device's idle time in their calls.

    The CPU itself fills the staging buffer, which the what-if engine takes for the copy's latency.
    """
    names = sorted({subject.name(row) for row in rows.tolist()})
    free = subject.gain(
        rows,
        *(f"scale:select=name={glob(name)},factor=0" for name in names),
        note="at most: copies hidden behind computing",
    )
    calls = subject.caller[rows]
    idle = subject.idle_during_ms(np.unique(calls[calls >= 0]))
    waited = subject.bound(idle, "at most the time that the device waits for these calls")
    return max(free, waited, key=lambda gain: gain.ms)
