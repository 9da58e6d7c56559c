"""`pageable_copies`: copies to the device from pageable host memory."""

from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded

EXPLAINS = ("synchronization",)
_TO_DEVICE = r"Memcpy HtoD|MemcpyH2D|CopyHostToDevice"
LIBRARIES = {
    "transformers": "Leave dataloader_pin_memory=True in TrainingArguments.",
    "timm": "Run with --pin-mem.",
}


def pageable_copies(context: RuleContext) -> Iterator[Finding]:
    """Copies from pageable host memory: they pass through a staging buffer, and the CPU waits.

    Silent if copies come from pinned memory, take less than 1 % of the step, or may be of weights
    since no step is known. If the trace does not record the kind of memory (AMD), a call that lasts
    until its copy ends counts.
    """
    rows, names = context.search.find(_TO_DEVICE, on_device=True), context.events.text("name")
    pageable = names.where(lambda name: "(Pageable" in name)[rows]
    pinned = names.where(lambda name: "(Pinned" in name)[rows]
    rows = rows[pageable | context.search.outlasted(rows) & ~pinned]
    if not len(rows) or not context.has_training_steps:
        return
    volume = np.maximum(context.events["bytes"][rows], 0).sum() / context.step_count
    size = f" ({rounded(volume / 1e6)} MB)" if volume else ""
    yield context.finding(
        f"Copies from pageable memory block the CPU, {rounded(context.measures.calls(rows), 4)} per step"
        f"{size}.{context.main_place(rows)}",
        context.advice(
            "Pin the memory and copy asynchronously: DataLoader(pin_memory=True) and "
            "batch.to(device, non_blocking=True).",
            inference="Keep inputs in pinned memory (tensor.pin_memory()) and copy them "
            "asynchronously: tensor.to(device, non_blocking=True).",
            **LIBRARIES,
        ),
        rows,
        _gain(context, rows),
        patch=context.patch("loader", pin_memory="True"),
    )


def _gain(context: RuleContext, rows: Rows) -> Gain:
    """The gain of copies without cost, or the device's idle time during the loop's calls, if greater.

    The CPU fills the staging buffer; the simulation takes that time for the latency of the copy.
    """
    free = context.gains.without_names(rows, at_most="at most: with copies that overlap computation")
    calls = np.unique(context.search.caller[rows])
    calls = calls[(calls >= 0) & (context.events["track"][calls] == context.search.loop_track)]
    idle = context.measures.recurring_ms(context.measures.spans(calls).intersect(context.measures.idle()))
    waited = context.gains.bound(idle, "at most the idle time of the device during these calls")
    return max(free, waited, key=lambda gain: gain.ms)
