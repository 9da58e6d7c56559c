"""`input_bound`: the step waits for its next batch."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.patch import Patch
from stepscope.analyze.rule_context import RuleContext
from stepscope.arrays import Rows

CAUSE = "input"
EXPLAINS = ("data",)
LEAST = 0.05
LEAST_PART = 0.3
MOST_WORKERS = 8
LIBRARIES = {
    "transformers": "Raise dataloader_num_workers in TrainingArguments, and set "
    "dataloader_persistent_workers=True.",
    "keras": "Raise workers in PyDataset, with use_multiprocessing=True.",
    "timm": "Raise --workers.",
}
# Parts of loading by the names of functions and operators; the first that matches counts.
PARTS = (
    (
        "starting workers",
        r"(?i)multiprocessing/|\bfork\b|popen|_MultiProcessing.*__init__",
    ),
    ("pinning memory", r"(?i)pin_memory"),
    ("collating", r"(?i)collate|^aten::(stack|cat)$"),
    ("decoding", r"(?i)decode|PIL/|imread|jpeg|read_image|ImageFile|soundfile|cv2\.im|load_image"),
    (
        "augmenting",
        r"(?i)transforms?[/.(]|augment|resize|crop|flip|jitter|rotate|normalize",
    ),
    ("tokenizing", r"(?i)tokeniz"),
    (
        "reading files",
        r"(?i)<built-in (method|function) (read|open)|\bread(_file|lines?)?$|h5py",
    ),
)
ALONE = "Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True)."
TOGETHER = (
    "Give the DataLoader more workers or a larger prefetch_factor, or reduce the work per sample: "
    "smaller files, decoding and augmentation on the device, caching."
)
JAX = (
    "Load the next batch while the step runs, in another thread or process (grain, tf.data with "
    "prefetch, a loader with workers), and copy it ahead with jax.device_put; reduce the work per "
    "sample."
)


def input_bound(context: RuleContext) -> Iterator[Finding]:
    """A step that waits for data: the next batch is not ready when the training loop needs it.

    Silent if this takes less than 5 % of the step, and if nothing marks data loading: no
    DataLoader, no range and no frame with such a name.
    """
    rows = context.outermost(context.find(stage="data_loading", on_device=False))
    waits = context.idle_ms("data") if context.has_device else context.ms(rows)
    if not len(rows) or waits < LEAST * context.steady_ms:
        return
    part = _part(context, rows)
    alone = len(context.find("_SingleProcessDataLoaderIter")) > 0
    who = "The device idles" if context.has_device else "The training loop waits"
    how = " in the main process (num_workers=0)." if alone else "."
    yield context.finding(
        f"{who} for {waits / context.steady_ms:.0%} of the step while a batch loads{how}{part}",
        context.advice(ALONE if alone else TOGETHER, jax=JAX, **LIBRARIES),
        rows,
        context.gain(rows, "dataloader"),
        patch=_patch(context) if alone else None,
    )


def _patch(context: RuleContext) -> Patch | None:
    capture = context.trace.metadata.capture
    cores = int(capture.get("cpus_usable") or capture.get("cpu_count") or 0)
    if not cores:
        return None
    workers = str(min(cores, MOST_WORKERS))
    return context.patch("loader", num_workers=workers, persistent_workers="True")


def _part(context: RuleContext, rows: Rows) -> str:
    """The part of loading with most of the time, in a sentence of its own; empty if unknown."""
    inside = np.flatnonzero(context.within(rows) & ~context.search.device_work)
    names = context.events.text("name").take(inside)
    whole = float(context.events["duration_ns"][rows].sum())
    best, most = "", LEAST_PART
    for part, pattern in PARTS:
        named = inside[names.where(lambda text, p=re.compile(pattern): bool(p.search(text)))]  # type: ignore[misc]
        share = float(context.events["duration_ns"][context.outermost(named)].sum()) / max(whole, 1)
        if share > most:
            best, most = part, share
    return f" Most of it is {best} ({min(most, 1):.0%})." if best else ""
