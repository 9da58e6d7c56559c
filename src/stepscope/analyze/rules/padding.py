"""`padding`: the model computes with positions of its batches that hold no data."""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Place
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.trace.schema import FORWARD_STAGES

LEAST = 0.2  # of the positions, chosen: less costs little
OTHER_BATCHES = 0.15  # chosen: how much more padding the batches after the measured ones may have
LEAST_SAVED = 0.5  # of the estimate, chosen: on a CPU the time of kernels grows with the positions
_SKIPS = r"pack_padded|varlen|unpad|jagged|flex_attention"  # computes without the padding
TO_LONGEST = "Pad each batch only to the longest of its samples, in collate_fn. "
SORT = "Put samples of similar lengths into one batch (a batch sampler that sorts by length), or pack them."
LIBRARIES = {
    "transformers": "Tokenize without padding='max_length', use DataCollatorWithPadding, and set "
    "group_by_length=True in TrainingArguments."
}


def padding(context: RuleContext) -> Iterator[Finding]:
    """Batches of which much is padding, as the first batches of the DataLoader show.

    Silent below 20 % of the positions, where neither a mask, nor lengths, nor the tokens say what is
    padding, where batches are made on a device, and where the model packs its sequences.
    """
    loaders = context.trace.metadata.capture.get("loaders") or ()
    most: Mapping[str, Any] = max(loaders, key=lambda one: one.get("positions") or 0, default={})
    positions = most.get("positions") or 0
    padded, behind = (min((most.get(key) or 0) / (positions or 1), 1.0) for key in ("padded", "behind_all"))
    if padded < LEAST or len(context.search.find(_SKIPS)) or not len(rows := _work(context)):
        return
    first = behind if behind >= LEAST else padded
    likely = context.gains.scaled(rows, 1 - first)
    most_ms = max(context.gains.scaled(rows, 1 - padded).ms, likely.ms) * (1 + OTHER_BATCHES)
    least = 0.0 if context.measures.has_device else LEAST_SAVED
    aside = f" In {behind:.0%} no sample of the batch has data." if behind >= LEAST else ""
    found = context.finding(
        f"{padded:.0%} of the positions in a batch are padding.{aside}",
        context.advice(f"{TO_LONGEST if behind else ''}{SORT}", **LIBRARIES),
        rows,
        replace(likely, note=f"with {first:.0%} less to compute", range_ms=(least * likely.ms, most_ms)),
    )
    made = [_place(most, likely.ms)] if most.get("collate_line") else []
    yield replace(found, evidence=(*made, *found.evidence))


def _place(loader: Mapping[str, Any], ms: float) -> Place:
    where = loader["collate_file"], loader["collate_line"], loader["collate"]
    return Place("padding", "data_loading", "", *where, 1.0, ms)


def _work(context: RuleContext) -> Rows:
    """What the model computes, forward and backward: on a device, or by operators."""
    stages = (*FORWARD_STAGES, "backward")
    if context.measures.has_device:
        return context.search.find(category="kernel", stage=stages, on_device=True)
    return context.search.outermost(context.search.find(category="cpu_op", stage=stages))
