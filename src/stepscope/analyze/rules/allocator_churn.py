"""`allocator_churn`: each step allocates memory from the system and frees it again."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded

EXPLAINS = ("host", "synchronization")
_CALLS = (
    r"^(cuda|hip)(Malloc|Free)(Async|Managed|Host)?$|^(cuda|hip)Host(Alloc|Malloc|Free)$"
    r"|^cuMem(Create|Release|Map|Unmap|Alloc|Free)\w*$"
)
_BIG_BYTES = 32 << 20  # glibc returns larger blocks to the system at once (M_MMAP_THRESHOLD_MAX)
LEAST_BIG = 4  # per step
ADVICE = "Leave memory free (a smaller batch) and do not call torch.cuda.empty_cache() in the loop."
RETRIES = "Leave memory free: a smaller batch, or activation checkpointing."
SEGMENTS = " If sizes vary, set PYTORCH_ALLOC_CONF=expandable_segments:True."
EMPTIED = "Do not call torch.cuda.empty_cache() in the loop. Let other code allocate from PyTorch's memory."
PINNED = (
    "It is pinned memory of the host",
    "Pin buffers once, before the loop, and copy each batch into them.",
)
ASKED = (
    "Its allocator asks the driver each time",
    "Let PyTorch cache memory: leave out backend:cudaMallocAsync in PYTORCH_ALLOC_CONF.",
)
JAX = (
    "Let JAX preallocate its memory (unset XLA_PYTHON_CLIENT_PREALLOCATE=false and "
    "XLA_PYTHON_CLIENT_ALLOCATOR=platform), and donate buffers that a step replaces: jax.jit(step, "
    "donate_argnums=…)."
)


def allocator_churn(context: RuleContext) -> Iterator[Finding]:
    """Memory that every step allocates from the driver or the system and frees again.

    Silent for a single step, and if fewer than half of the steps do it: a first step has to allocate. On a
    CPU also if allocations were not recorded (`--memory`), or fewer than 4 per step are 32 MiB or larger.
    """
    if context.measures.has_device:
        yield from _by_driver(context)
    else:
        yield from _by_system(context)


def _by_driver(context: RuleContext) -> Iterator[Finding]:
    rows = context.search.find(_CALLS, category="runtime")
    doing = len(np.unique(context.events["step"][rows]))
    if context.step_count < 2 or doing * 2 < context.step_count or not len(rows):
        return
    why, advice = _reason(context, rows)
    yield context.finding(
        f"Each step allocates or frees driver memory {context.times(rows)}, "
        f"{rounded(context.measures.ms(rows))} ms.{context.main_place(rows)} {why}.",
        context.by_framework(advice, jax=JAX),
        rows,
        context.gains.without_names(rows),
    )


def _reason(context: RuleContext, rows: Rows) -> tuple[str, str]:
    """Why memory is freed, and what to do.

    Within an operator the allocator has run out of memory, frees what it caches and tries again;
    outside it was asked to, or it is another's. It maps pages (cuMemMap) if its segments can be expanded.
    """
    names, time = context.events.text("name").take(rows), context.events["duration_ns"][rows]
    if 2 * time[names.where(lambda name: "Host" in name)].sum() > time.sum():
        return PINNED
    if 2 * time[names.where(lambda name: "Async" in name)].sum() > time.sum():
        return ASKED
    frees = rows[names.where(lambda name: "Free" in name)]
    more = "" if names.where(lambda name: name.startswith("cuMemMap")).any() else SEGMENTS
    if not len(frees):
        return "The caching allocator cannot keep enough memory", ADVICE + more
    if (context.search.operator_of(frees) >= 0).mean() > 0.5:
        return "The allocator ran out of memory, freed its cache and retried", RETRIES + more
    return "The cache of the allocator is emptied in the loop, or other code allocates by itself", EMPTIED


def _by_system(context: RuleContext) -> Iterator[Finding]:
    memory = context.trace["memory"]
    big = (memory["bytes"] >= _BIG_BYTES) & (memory["event"] >= 0)
    big &= (memory["rank"] == context.rank) & memory.text("device").mask("cpu")
    events = memory["event"][big]
    mine = np.isin(context.events["step"][events], context.steps["step"])
    rows: Rows = np.unique(events[mine]).astype(np.int64)
    if mine.sum() < LEAST_BIG * context.step_count:
        return
    volume = float(memory["bytes"][big][mine].sum()) / context.step_count
    yield context.finding(
        f"Each step allocates and frees {rounded(mine.sum() / context.step_count, 4)} blocks of 32 MiB or "
        f"more. They are {rounded(volume / 1e9)} GB in total from the system: the kernel maps and clears "
        "every page each time.",
        "Work in place (add_, mul_, out=), reuse buffers, or preload an allocator that caches "
        "memory (jemalloc, tcmalloc).",
        rows,
        context.gains.bound(context.measures.ms(rows), "at most the time of the operators that allocate"),
    )
