"""Profile an entry file: find its batch size, sweep, fit, break down. What editors call."""

import itertools
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepscope.base.scratch import plan_scratch
from stepscope.errors import BatchError
from stepscope.facts.roofline.rates import Capacity
from stepscope.models.batch_size.entry import Entry, open_entry
from stepscope.models.batch_size.entry_profile import Profile, make_profile
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.fit import fit_peaks
from stepscope.models.batch_size.measure_entry import EntryMeasuring, estimate_at
from stepscope.models.batch_size.measurement import BatchPoint
from stepscope.models.batch_size.site import SiteChoice
from stepscope.models.batch_size.sweep import QUICK, NothingFits, Plan, Progress, sweep
from stepscope.models.batch_size.worker_process import Cancelled, Worker
from stepscope.models.memory.caching_allocator import Settings, least_reserved
from stepscope.record.batch_size.request import RunFacts

# Of cuBLAS, for the threads of forward and backward: PyTorch's default on an H100; before, 8 MiB each.
_WORKSPACES = ((-1, 32 << 20), (-2, 32 << 20))
_ERROR = 0.05  # of memory in use: more than the largest of eight models on an H200, 3.8 %
_IN_16_BITS = 0.12  # the same under autocast, of seven models: an LSTM, which stays in FP32 here
_MOST_TIMES = 64  # the script's own batch size; chosen: its data may not have more samples
_MISS = 0.25  # of the prediction: with so much less memory, a step had fewer samples


def gpu_memory(entry: Entry, capacities: Sequence[Capacity], estimated: Callable[[int], RunFacts]) -> Result:
    """Whether a step fits a GPU that is not there: its memory on fake tensors, computing nothing.

    At the script's own batch size, twice of it, and where each device is full, with what PyTorch's
    allocator reserves for exactly these allocations. Against eight models on an H200 (64 GiB) memory
    in use is off by 0.7 % on average and at most 3.8 % at the largest size that fits. What is not
    known are workspaces of cuDNN, which asks for less where memory is short.

    Args:
        estimated: the facts of an estimate as on a GPU, at a batch size.

    Raises:
        BatchError: if the script does not run on fake tensors, with the reason.
    """
    facts, notes = _two_estimates(entry.batch, estimated), list[str]()
    error = _IN_16_BITS if any(one["autocast"] for one in facts.values()) else _ERROR
    points = {batch: estimated_point(batch, one) for batch, one in facts.items()}
    if len({point.bytes for point in points.values()}) == 1:
        notes.append("memory does not grow with the batch size, so what fits at most is not known")
    for capacity in capacities:
        result = _result(entry, points, notes, error)
        edge = min(result.fits(capacity)["batch"] or 1, _MOST_TIMES * entry.batch)
        if edge in points or notes:
            continue
        try:
            point = estimated_point(edge, estimated(edge))
        except BatchError as failure:
            notes.append(f"larger batch sizes are extrapolated: {failure}")
            continue
        if point.bytes < (1 - _MISS) * result.profile.predict(edge)["bytes"]:
            notes.append(f"a step at batch size {edge:,} has fewer samples: its data may end before")
        else:
            points[edge] = point
    return _result(entry, points, notes, error)


def _two_estimates(own: int, estimated: Callable[[int], RunFacts]) -> dict[int, RunFacts]:
    """Of a batch size and twice of it: the own one, or a smaller one if the data ends before that."""
    facts, size = {own: estimated(own)}, own
    try:
        facts[2 * own] = estimated(2 * own)
    except BatchError:  # no whole batch, as `drop_last` wants it
        if own == 1:
            raise
    samples = {batch: sum(one.get("samples", ())) for batch, one in facts.items()}
    while size > 1 and samples.get(2 * size, -1) < 2 * samples[size]:
        size //= 2
        facts |= {batch: estimated(batch) for batch in (size, 2 * size) if batch not in facts}
        samples = {batch: sum(one.get("samples", ())) for batch, one in facts.items()}
    return {batch: facts[batch] for batch in (size, 2 * size)}


def _result(entry: Entry, points: dict[int, BatchPoint], notes: list[str], error: float) -> Result:
    ordered = tuple(points[size] for size in sorted(points))
    sizes, peaks = [point.batch for point in ordered], [float(point.bytes) for point in ordered]
    memory = replace(fit_peaks(sizes, peaks), own_error=error)
    return Result(entry, Profile(ordered, None, memory, None, {"type": "cuda"}, tuple(notes)))


def estimated_point(batch: int, facts: RunFacts) -> BatchPoint:
    """What an estimate's allocations take, and the least that PyTorch's allocator reserves for them."""
    history = [*_WORKSPACES, *((key, size) for key, size in facts["history"])]
    used, needed = least_reserved(history, Settings.of({"PYTORCH_ALLOC_CONF": facts.get("allocator")}))
    return BatchPoint(batch, 0.0, used, reserved=needed)


def own_size(result: Result, capacity: Capacity) -> dict[str, Any]:
    """The step at the script's own batch size, and whether it fits."""
    batch = result.entry.batch
    used, fits = result.bytes_on_device(batch), result.fit(batch, capacity.usable_bytes)
    reserved = [*map(round, result.reserved_range(batch))]
    return {"batch": batch, "bytes": used and used[0], "reserved_range": reserved, "fits": fits}


class Session:
    """Profiles entry files with one measuring process, which it keeps ready between them.

    Args:
        python: the interpreter that the scripts run under; by default ours.
        on_progress: called with what is being done, how much of it is done and how much there is.
        in_place: run scripts in their project instead of a scratch view of it.

    Example:
        with Session() as session:
            result = session.profile("train.py", ["--lr", "0.1"])
            print(result.profile.predict(64))
    """

    def __init__(
        self,
        python: str | None = None,
        on_progress: Progress = lambda words, done, total: None,
        in_place: bool = False,
    ) -> None:
        self._python = python
        self.in_place = in_place
        self._progress = on_progress
        self.cancel = threading.Event()
        self._workers: dict[str, Worker] = {}

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the measuring process now, so that the first profile need not wait for it."""
        self._worker("torch").start()

    def close(self) -> None:
        """End the measuring process."""
        for worker in self._workers.values():
            worker.close()
        self._workers.clear()

    def profile(
        self,
        path: str | os.PathLike[str],
        arguments: Sequence[str] = (),
        *,
        unsaved: Mapping[str, str] | None = None,
        choice: str | SiteChoice | None = None,
        folder: str | os.PathLike[str] | None = None,
        plan: Plan | None = None,
    ) -> Result:
        """Measure an entry file at several batch sizes.

        Args:
            path, arguments, unsaved, choice, folder: as `open_entry` takes them.
            plan: how much to measure.

        Raises:
            AmbiguousBatchSize: there are several batch sizes; it holds them.
            BatchError: the file has none, or it fails when it runs; `file` and `line` say where.
            Cancelled: `session.cancel` was set.
        """
        entry = open_entry(path, arguments, unsaved=unsaved, choice=choice, folder=folder)
        return self.profile_entry(entry, plan or Plan())

    def profile_entry(self, entry: Entry, plan: Plan) -> Result:
        """The same for an entry that is open already."""
        if entry.scratch is None:
            entry = replace(entry, scratch=plan_scratch(entry.path, entry.folder, in_place=self.in_place))
        run = EntryMeasuring(entry, plan, self._worker(entry.preload))
        try:
            swept = sweep(run.measure, entry.batch, plan, self._progress)
        except NothingFits as error:
            raise NothingFits(str(error), *run.ran_out_at) from error
        estimated = run.estimate(swept, self._progress)
        profile = make_profile(swept.points(), swept.too_large, run.device, run.warnings(swept))
        breakdown = run.breakdown(swept)
        return Result(
            entry, profile, breakdown, estimated, run.capture, run.captured_batch, run.program_memory
        )

    def memory_on_gpu(self, entry: Entry, capacities: Sequence[Capacity], timeout_s: float) -> Result:
        """Memory as on GPUs that are not there (`gpu_memory`); the entry is run where that fails."""
        worker, done = self._worker(entry.preload), itertools.count()

        def estimated(batch: int) -> RunFacts:
            self._progress(f"memory at batch size {batch:,}", next(done), 2 + len(capacities))
            return estimate_at(worker, entry, batch, timeout_s, as_gpu=True)

        try:
            return gpu_memory(entry, capacities, estimated)
        except Cancelled:
            raise
        except BatchError as error:
            run = self.profile_entry(entry, replace(QUICK, breakdown=True, timeout_s=timeout_s))
            notes = (f"the script was run on this machine: {error}", *run.profile.warnings)
            return replace(run, profile=replace(run.profile, warnings=notes))

    def _worker(self, preload: str) -> Worker:
        if preload not in self._workers:
            self._workers[preload] = Worker(self._python, preload, self.cancel)
        return self._workers[preload]
