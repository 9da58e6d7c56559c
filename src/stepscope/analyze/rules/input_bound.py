"""`input_bound`: the step waits for its next batch."""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain, only_call
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.python_stalls import place_at, sampled_line
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.trace.frame_name import is_users_frame
from stepscope.trace.recorded_steps import LaterLoading, cpus_of, later_loading, milliseconds, worker_restarts

CAUSE = "input"
EXPLAINS = ("data",)
LEAST_PART = 0.3  # of loading
MOST_OF_IT = 0.5  # of loading
MOST_PARTS = 3  # that the sentence names
MOST_WORKERS = 8  # that the patch asks for
RESTARTS = 0.5  # of the waits in later steps: so much explains them
MUCH_LONGER = 2  # than recorded steps wait, relative to the rest of a step: a busy machine lengthens both
READY = "at most: with batches that are always ready"
LATER = "at most the share that the steps after the recording wait"
# To receive a batch of two tensors from a worker took the training loop 0.5 to 0.8 ms of CPU time
# on 2 cores of an AMD EPYC, and 0.09 ms more for each further tensor (PyTorch 2.13).
RECEIVING_MS, RECEIVING_MOST_MS = 0.5, 0.8
# Of the gain: `verify dataloader` measured 2.08x where 2.00x was predicted, CPU alone; where workers share
# the loop's cores, `benchmarks/advice.py` saved 33 % of 42 %.
MARGIN, CONTENTION = 0.1, 0.2
LIBRARIES = {
    "transformers": "Raise dataloader_num_workers in TrainingArguments, and set "
    "dataloader_persistent_workers=True.",
    "keras": "Raise workers in PyDataset, with use_multiprocessing=True.",
    "timm": "Raise --workers.",
}


class LoadingPart(NamedTuple):
    """A part of loading: the names of its functions and operators, and what makes it shorter."""

    name: str
    pattern: str
    advice: str


# An event counts for the first that matches.
PARTS = (
    LoadingPart(
        "starting workers",
        r"(?i)multiprocessing/|\bfork\b|popen|_MultiProcessing.*__init__",
        "Keep the workers between epochs: DataLoader(persistent_workers=True).",
    ),
    LoadingPart(
        "pinning memory",
        r"(?i)pin_memory",
        "Pin fewer bytes: send integers or bytes, and convert them on the device.",
    ),
    LoadingPart(
        "collating",
        r"(?i)collate|^aten::(stack|cat)$",
        "Return whole batches from the dataset (a batch sampler with batch_size=None), or collate "
        "into preallocated arrays.",
    ),
    LoadingPart(
        "decoding",
        r"(?i)decode|PIL/|imread|jpeg|read_image|ImageFile|soundfile|cv2\.im|load_image",
        "Store samples smaller or already decoded, or decode on the device "
        "(torchvision.io.decode_jpeg(device='cuda'), DALI).",
    ),
    LoadingPart(
        "augmenting",
        r"(?i)transforms?[/.(]|augment|resize|crop|flip|jitter|rotate|normalize",
        "Augment whole batches on the device (torchvision.transforms.v2 takes them).",
    ),
    LoadingPart("tokenizing", r"(?i)tokeniz", "Tokenize once, ahead of time, and load token ids."),
    LoadingPart(
        "copying to the device",
        r"(?i)^Memcpy HtoD|^(cuda|hip)Memcpy",
        "Copy the next batch while this step runs: pin_memory=True and batch.to(device, non_blocking=True).",
    ),
    LoadingPart(
        "reading files",
        r"(?i)<built-in (method|function) (read|open)|\bread(_file|lines?)?$|h5py",
        "Read fewer, larger files (shards, WebDataset, memory maps), from a local disk.",
    ),
)
ONCE = "Create the DataLoader once, before the loop over epochs: else its workers start again in each."
ALONE = "Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True)."
FASTER = " Or shorten what that function does: all of loading is {:.0%} of the step."
QUICK = (
    "Index whole batches instead of samples: keep the data in one tensor and index that. Or use "
    "DataLoader(dataset, batch_size=None, sampler=BatchSampler(…)). Workers would not help: to "
    "receive a batch from one takes about as long."
)
CHEAPER = "the work per sample: smaller files, decoding and augmentation on the device, caching."
TOGETHER = f"Load ahead in a thread, with more workers or a larger prefetch_factor. Or reduce {CHEAPER}"
ALL_CORES = f"The workers have all of {{cores}}: more help only where they wait for a disk. Reduce {CHEAPER}"
STREAM = (
    "Let each worker read its own part of the IterableDataset (torch.utils.data.get_worker_info). "
    "Where all get the same samples, skip those of others before they are decoded."
)
FEW_CORES = f"Workers would share {{cores}} with the {{loop}} and save little. Reduce {CHEAPER}"
JAX = (
    "Load the next batch while the step runs, in another thread or process. Use grain, tf.data with "
    "prefetch or a loader with workers; copy it ahead with jax.device_put; reduce the work per sample."
)


def input_bound(context: RuleContext) -> Iterator[Finding]:
    """A step that waits for data: the next batch is not ready when the training loop needs it.

    Silent if this takes less than 5 % of the step, and if nothing marks data loading: no
    DataLoader, no range and no frame with such a name. What a compiled program does to its data
    does not count. The steps after a recording count where they wait for twice as long.
    """
    rows = context.search.find(stage="data_loading", on_device=False)
    rows = context.search.outermost(rows[context.events["scope"][rows] < 0])  # nothing waits for those
    waits = context.measures.idle_ms("data") if context.measures.has_device else context.measures.ms(rows)
    later = later_loading(context.trace.metadata.capture)
    hidden = later if later and _is_hidden(context, waits, later) else None
    if not len(rows) or (context.measures.is_small(waits) and not hidden):
        return
    parts = _parts(context, rows)
    loader, measures = _Loader.of(context), context.measures
    workers = loader.useful_workers
    remade = bool((only_call(context.trace.metadata, "loader") or {}).get("in_loop"))
    gain = _gain_of_workers(context, rows, workers) if workers else None
    helps = gain is None or not measures.is_small(gain.ms)
    # On a CPU, delays by other processes are part of this time: as in the report, the step has them too.
    share = measures.idle_share("data") if measures.has_device else min(waits / measures.step_ms, 1.0)
    who = "The device idles" if context.measures.has_device else f"The {context.loop} waits"
    line = sampled_line(context, measures.ms(rows), "data_loading")
    arguments = {"num_workers": str(workers), "persistent_workers": "True"}
    how = " They load in the main process (num_workers=0)." if loader.is_alone else ""
    patches = workers and helps and not remade and not loader.streams  # each would load all samples
    found = context.finding(
        f"{who} {share:.0%} of the step while batches load.{how}{_hidden_in_words(hidden, loader)}"
        f"{_in_words(parts)}{f' Most of it is in {line}.' if line else ''}",
        (f"{ONCE} " if remade and workers and helps else "")
        + loader.advice(context, parts, helps)
        + (FASTER.format(share) if line and loader.is_alone else ""),
        rows,
        gain if gain and helps else _gain(context, rows, hidden),
        recurs=not later or later.ms < measures.ms(rows),  # workers deliver batches in bursts
        patch=context.patch("loader", **arguments) if patches else None,
    )
    sampled = [place_at(one) for one in measures.summary.places if one.stage == "data_loading"]
    evidence = sorted([*found.evidence, *sampled], key=lambda place: -place.ms)
    yield replace(found, evidence=tuple(evidence))


class _Loader(NamedTuple):
    """Who loads the batches."""

    is_alone: bool  # whether the training loop does itself
    is_quick: bool  # whether that takes no longer than to receive a batch from a worker
    workers: int  # how many the file says there are; 0 if it does not
    streams: bool  # whether they iterate over one stream of samples
    cores: int  # that the process may use, 0 if unknown

    @classmethod
    def of(cls, context: RuleContext) -> "_Loader":
        batches = context.search.find("_SingleProcessDataLoaderIter")
        later = later_loading(context.trace.metadata.capture)
        spent_ms = min(context.measures.ms(batches), later.ms if later else np.inf) * context.step_count
        capture = context.trace.metadata.capture
        most: dict[str, Any] = max(
            capture.get("loaders") or (), key=lambda one: one.get("workers") or 0, default={}
        )
        workers, streams = most.get("workers") or 0, bool(most.get("iterable"))
        is_quick = len(batches) > 0 and spent_ms < RECEIVING_MS * len(batches)
        return cls(len(batches) > 0, is_quick, workers, streams, cpus_of(capture))

    @property
    def useful_workers(self) -> int:
        """As many as there are cores, where none work yet; 0 where that is no advice."""
        return min(self.cores, MOST_WORKERS) if self.is_alone and not self.is_quick else 0

    def advice(self, context: RuleContext, parts: dict[LoadingPart, float], helps: bool) -> str:
        """What to do; `helps` is whether workers save enough, where none work yet."""
        if self.is_quick:
            return QUICK
        plain, more = self._plain(context.loop, helps)
        if self.streams and (helps if self.is_alone else self.workers > 1):
            plain = f"{plain} {STREAM}" if self.is_alone else f"{STREAM} {plain}"
        general = context.advice(plain, jax=JAX, **(LIBRARIES if more else {}))
        if context.is_jax or max(parts.values(), default=0) <= LEAST_PART:
            return general
        return f"{general} {max(parts, key=lambda part: parts[part]).advice}"

    def _plain(self, loop: str, helps: bool) -> tuple[str, bool]:
        """For plain PyTorch, and whether it is more workers."""
        if self.is_alone and helps:
            return ALONE, True
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        if self.is_alone:
            return FEW_CORES.format(cores=cores, loop=loop), False
        uses_all = 0 < self.cores <= self.workers
        return (ALL_CORES.format(cores=cores), False) if uses_all else (TOGETHER, True)


def _gain_of_workers(context: RuleContext, rows: Rows, workers: int) -> Gain | None:
    """What some workers save by simulation; at least what is left when each batch is received.

    Loading that waits, as for a disk, leaves the cores to others: by its CPU time in the recorded steps.
    """
    loading = (context.trace.metadata.capture.get("recorded_steps") or {}).get("parts", {})
    times = loading.get("data_loading") or {}
    computing = min(times.get("cpu_ns", 0) / times["median_ns"], 1.0) if times.get("median_ns") else 1.0
    gain = context.gains.whatif(f"dataloader:workers={workers},computing={computing:.2f}")
    if gain is None:
        return None
    cost_ms = context.measures.cost_ms(rows)
    gain = gain.at_most(cost_ms)
    low, high = gain.range_ms or (gain.ms, gain.ms)
    least = CONTENTION if computing > LEAST_PART else MARGIN
    bounds = max(low - RECEIVING_MOST_MS, 0.0) * (1 - least), min(high * (1 + MARGIN), cost_ms)
    return replace(gain, note=f"with {workers} workers", range_ms=bounds)


def _is_hidden(context: RuleContext, waits_ms: float, later: LaterLoading) -> bool:
    """Whether the recorded steps had batches that were ready, and the steps after them wait.

    Waits for workers that start again are of another rule.
    """
    restarts, run = worker_restarts(context.trace.metadata.capture), context.measures.summary.run
    if restarts and run and restarts.most_ns / 1e6 >= RESTARTS * later.ms * run.steps:
        return False
    rest_ms, later_rest_ms = context.measures.step_ms - waits_ms, later.step_ms - later.ms
    much_longer = later.ms * rest_ms > MUCH_LONGER * waits_ms * later_rest_ms
    return much_longer and later.share >= LEAST_SHARE and not context.measures.has_device


def _gain(context: RuleContext, rows: Rows, hidden: LaterLoading | None) -> Gain:
    if hidden:
        return context.gains.bound(hidden.share * context.measures.steady_ms, LATER)
    return context.gains.gain(rows, "dataloader", at_most=READY)


def _hidden_in_words(hidden: LaterLoading | None, loader: _Loader) -> str:
    """What only the steps after the recording show, in a sentence of its own."""
    if not hidden:
        return ""
    recorded = "load less" if loader.is_alone else "found batches that were ready"
    return (
        f" Later steps load or wait for {hidden.share:.0%} ({milliseconds(hidden.ms * 1e6)} of "
        f"{milliseconds(hidden.step_ms * 1e6)}); the recorded ones {recorded}."
    )


def _in_words(parts: dict[LoadingPart, float]) -> str:
    """The parts of loading, the longest first, in a sentence of its own; empty if unknown."""
    ordered = sorted(parts.items(), key=lambda one: -one[1])
    shares = [f"{part.name} ({share:.0%})" for part, share in ordered]
    if not shares or ordered[0][1] <= LEAST_PART:
        return ""
    others = f", then {', '.join(shares[1:MOST_PARTS])}" if len(shares) > 1 else ""
    head = "Most of it is" if ordered[0][1] >= MOST_OF_IT else "The largest part is"
    return f" {head} {shares[0]}{others}."


def _parts(context: RuleContext, rows: Rows) -> dict[LoadingPart, float]:
    """The share of loading that each part takes, without those of less than 5 %.

    Where a part calls another, as collating calls tokenizing, the time is the inner part's.
    """
    inside = np.flatnonzero(context.search.within(rows))
    names = context.events.text("name").take(inside)
    part = np.full(len(names.values) + 1, -1, np.int64)
    for code, name in enumerate(names.values):
        found = (at for at, one in enumerate(PARTS) if re.search(one.pattern, _without_folders(name)))
        part[code] = next(found, -1)
    of_event = part[names.codes]
    whole = max(float(context.events["duration_ns"][rows].sum()), 1.0)
    matched = inside[of_event >= 0]
    number = of_event[of_event >= 0]
    own = context.search.own_ns(matched, context.events["duration_ns"][matched])
    spent = np.bincount(number, np.maximum(own, 0), len(PARTS)) / whole
    return {
        one: min(float(share), 1.0) for one, share in zip(PARTS, spent, strict=True) if share >= LEAST_SHARE
    }


def _without_folders(name: str) -> str:
    """The name of an event without the folders of the user's file, which are no evidence of what runs."""
    return re.sub(r"^(/|\w:\\).*[/\\]", "", name) if is_users_frame(name) else name
