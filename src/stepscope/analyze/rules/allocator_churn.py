"""`allocator_churn`: memory is taken from the system and given back within each step."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Rows, Subject

_CALLS = (
    r"^(cuda|hip)(Malloc|Free)(Async|Managed|Host)?$|^(cuda|hip)Host(Alloc|Malloc|Free)$"
    r"|^cuMem(Create|Release|Map|Unmap|Alloc|Free)\w*$"
)
_BIG_BYTES = 32 << 20  # glibc gives larger pieces back to the system at once (M_MMAP_THRESHOLD_MAX)
LEAST_BIG = 4
ADVICE = (
    "Leave it room (a smaller batch, no torch.cuda.empty_cache() in the loop), or let blocks grow "
    "where sizes vary: PYTORCH_ALLOC_CONF=expandable_segments:True."
)
JAX = (
    "Let JAX take its memory once (no XLA_PYTHON_CLIENT_PREALLOCATE=false and no "
    "XLA_PYTHON_CLIENT_ALLOCATOR=platform), and donate what a step replaces: jax.jit(step, "
    "donate_argnums=…)."
)


def allocator_churn(subject: Subject) -> Iterator[Finding]:
    """Memory taken from the driver or the system, and given back, in every step.

    Silent for a single step, and where fewer than half of the steps do it: a first step has to
    allocate. Without a device where allocations were not recorded (`--memory`) or fewer than 4 of
    32 MiB or more are made a step.
    """
    if subject.has_device:
        yield from _by_driver(subject)
    else:
        yield from _by_system(subject)


def _by_driver(subject: Subject) -> Iterator[Finding]:
    rows = subject.find(_CALLS, category="runtime")
    doing = len(np.unique(subject.events["step"][rows]))
    if subject.count < 2 or doing * 2 < subject.count or not len(rows):
        return
    names = sorted({subject.name(row) for row in rows.tolist()})
    yield subject.finding(
        f"Each step takes memory from the driver or gives it back {subject.calls(rows):.4g} times, "
        f"{subject.ms(rows):.3g} ms: the caching allocator cannot keep what the step needs.",
        subject.in_words(ADVICE, jax=JAX),
        rows,
        subject.gain(rows, *(f"scale:select=name={name},factor=0" for name in names)),
    )


def _by_system(subject: Subject) -> Iterator[Finding]:
    memory = subject.trace["memory"]
    big = (memory["bytes"] >= _BIG_BYTES) & (memory["event"] >= 0)
    big &= (memory["rank"] == subject.rank) & memory.text("device").mask("cpu")
    events = memory["event"][big]
    mine = np.isin(subject.events["step"][events], subject.steps["step"])
    rows: Rows = np.unique(events[mine]).astype(np.int64)
    if mine.sum() < LEAST_BIG * subject.count:
        return
    volume = float(memory["bytes"][big][mine].sum()) / subject.count
    yield subject.finding(
        f"{mine.sum() / subject.count:.4g} times a step, {volume / 1e9:.3g} GB in all, memory is "
        "taken from the system in pieces of 32 MiB or more and given back: each page is mapped and "
        "cleared anew.",
        "Work in place (add_, mul_, out=), reuse buffers, or preload an allocator that keeps "
        "memory (jemalloc, tcmalloc).",
        rows,
        subject.bound(subject.ms(rows), "at most the time of the operators that allocate"),
    )
