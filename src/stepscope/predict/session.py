"""Profile an entry file: find its batch size, sweep, fit, break down. What editors call."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.capture.batch.request import Effort
from stepscope.errors import BatchError
from stepscope.predict.breakdown import Breakdown, read_breakdown
from stepscope.predict.capacity import Capacity
from stepscope.predict.edit import Edit, edit_site
from stepscope.predict.entry import Entry, open_entry
from stepscope.predict.estimate import Estimate, estimate
from stepscope.predict.measured import Measured
from stepscope.predict.points import POINTS
from stepscope.predict.process import Cancelled, Reply, Worker
from stepscope.predict.profile import Profile, make_profile
from stepscope.predict.sweep import NothingFits, Progress, Sweep, sweep

Json = dict[str, Any]
_MOST_OF_MEMORY = 0.9


@dataclass(frozen=True)
class Plan:
    """How much to measure.

    Attributes:
        points: batch sizes; the last one is held back to tell the error.
        rounds: rounds over them at most.
        effort: steps in each measurement.
        timeout_s: seconds after which a measurement is given up as hung.
        breakdown: also tell what each line, module and operator costs.
        estimate: where there is no GPU, also estimate memory without computing.
    """

    points: int = POINTS + 1
    rounds: int = 3
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 600.0
    breakdown: bool = True
    estimate: bool = True


# For an editor, which wants an answer while the file is still in mind.
QUICK = Plan(
    rounds=1,
    effort=Effort(warmup=2, memory=1, least=3, seconds=0.2),
    timeout_s=60.0,
    estimate=False,
)


@dataclass(frozen=True)
class Result:
    """All that is known of one entry file.

    Attributes:
        entry: the file, its command line and its batch size.
        profile: models over the batch size.
        breakdown: what a step at the entry's own batch size is made of; None if not asked for.
        estimate: memory as fake tensors tell it; None if not asked for or not possible.
        capture: the steps that were recorded; the file is gone once the session is closed.
    """

    entry: Entry
    profile: Profile
    breakdown: Breakdown | None = None
    estimate: Estimate | None = None
    capture: Path | None = None

    def to_json(self, at: Sequence[int] = ()) -> Json:
        """As `stepscope batch --json` has it."""
        entry = self.entry
        result: Json = {
            "entry": entry.path,
            "arguments": list(entry.arguments),
            "kind": entry.kind,
            "batch": entry.batch,
            "site": entry.site.to_json(),
            **self.profile.to_json(at),
        }
        if self.breakdown is not None:
            result["breakdown"] = self.breakdown.to_json()
        if self.estimate is not None:
            result["estimate"] = self.estimate.to_json()
        return result

    def fits(self, capacity: Capacity) -> Json:
        """The largest batch size whose peak is within a capacity.

        Returns:
            `{"name", "capacity_bytes", "batch", "bytes", "throughput"}`; batch is None where not
            even one sample fits.
        """
        batch = self.profile.batch_for_bytes(capacity.bytes)
        found = self.profile.predict(batch) if batch else {}
        return {
            "name": capacity.name,
            "capacity_bytes": capacity.bytes,
            "batch": batch,
            "bytes": found.get("bytes"),
            "throughput": found.get("throughput"),
        }

    def edit(self, batch: int) -> Edit:
        """The change of source that sets a batch size; see `edit_site`."""
        site = self.entry.site
        return edit_site(self.entry.sources[site.path].text, site, batch)


class Session:
    """Profiles entry files with one measuring process, which it keeps ready between them.

    Args:
        python: the interpreter that the scripts run under; by default ours.
        on_progress: told what is being done, how much of it is done and how much there is.

    Example:
        with Session() as session:
            result = session.profile("train.py", ["--lr", "0.1"])
            print(result.profile.predict(64))
    """

    def __init__(
        self,
        python: str | None = None,
        on_progress: Progress = lambda words, done, total: None,
    ) -> None:
        self._python = python
        self._progress = on_progress
        self.cancel = threading.Event()
        self._workers: dict[bool, Worker] = {}

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def warm_up(self) -> None:
        """Start the measuring process now, so that the first profile need not wait for it."""
        self._worker(True).start()

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
        text: str | None = None,
        choice: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        plan: Plan | None = None,
    ) -> Result:
        """Measure an entry file at several batch sizes.

        Args:
            path: a training script, or a file with provider functions.
            arguments: its command line.
            text: what an editor holds in the file's place.
            choice: which batch size, where there are several.
            folder: where to run; by default here.
            plan: how much to measure.

        Returns:
            Models, predictions and breakdowns.

        Raises:
            AmbiguousBatchSize: there are several batch sizes; it holds them.
            BatchError: the file has none, or it fails when it runs; `file` and `line` tell where.
            Cancelled: `session.cancel` was set meanwhile.
        """
        entry = open_entry(path, arguments, text=text, choice=choice, folder=folder)
        return self.profile_entry(entry, plan or Plan())

    def profile_entry(self, entry: Entry, plan: Plan) -> Result:
        """The same for an entry that is open already."""
        run = _Run(entry, plan, self._worker(entry.may_fork))
        try:
            found = sweep(
                run.measure, entry.batch, wanted=plan.points, most_rounds=plan.rounds,
                progress=self._progress,
            )  # fmt: skip
        except NothingFits as error:
            raise NothingFits(str(error), *run.ran_out_at) from error
        estimated = run.estimate(found, self._progress)
        notes = [*run.notes, *_notes(entry, found, plan)]
        profile = make_profile(found.points(), found.too_large, run.device, notes)
        return Result(entry, profile, run.breakdown(found), estimated, run.capture)

    def _worker(self, fork: bool) -> Worker:
        if fork not in self._workers:
            self._workers[fork] = Worker(self._python, fork, self.cancel)
        return self._workers[fork]


class _Run:
    """The measurements of one entry."""

    def __init__(self, entry: Entry, plan: Plan, worker: Worker) -> None:
        self.entry, self.plan, self.worker = entry, plan, worker
        self.device: Json = {}
        self.notes: list[str] = []
        self.ran_out_at: tuple[str, int | None] = (entry.path, None)
        self._known: dict[int, int] = {}
        self._captures: dict[int, Path] = {}

    def measure(self, batch: int) -> Measured | None:
        """Once, in a fresh process; the first also records what the step is made of."""
        if self._surely_too_large(batch):
            return None
        capture = None
        if self.plan.breakdown and not self._captures:
            capture = self.worker.folder / f"batch{batch}.stepscope"
        request = self.entry.request(
            batch, effort=self.plan.effort, capture=str(capture) if capture else None,
            timeout_s=self.plan.timeout_s,
        )  # fmt: skip
        reply = self.worker.run(request)
        if reply.facts["outcome"] == "out_of_memory":
            self.ran_out_at = _place(reply.facts["error"], self.entry)
            return None
        facts = _checked(reply, self.entry)
        self.device = facts["device"]
        self._known[batch] = facts["bytes"]
        if capture is not None and capture.exists():
            self._captures[batch] = capture
        return Measured(batch, tuple(facts["steps_ms"]), facts["bytes"], facts)

    @property
    def capture(self) -> Path | None:
        """What was recorded, until the session is closed."""
        return next(iter(self._captures.values()), None)

    def breakdown(self, found: Sweep) -> Breakdown | None:
        """Of the batch size recorded; it stands for the others."""
        for batch, capture in self._captures.items():
            ms = next(point.ms for point in found.points() if point.batch == batch)
            return read_breakdown(capture, batch, ms)
        return None

    def estimate(self, found: Sweep, progress: Progress) -> Estimate | None:
        """Memory without computing, at the batch sizes measured; a note where that fails."""
        if not self.plan.estimate or self.device.get("type") != "cpu":
            return None
        progress("memory without computing", len(found.rounds), len(found.rounds) + 1)
        batches = list(found.rounds)[:POINTS]
        measured = found.rounds[batches[0]][0].bytes
        try:
            return estimate(self.worker, self.entry, batches, measured, self.plan.timeout_s)
        except Cancelled:
            raise
        except BatchError as error:
            self.notes.append(f"memory could not be estimated without running: {error}")
            return None

    def _surely_too_large(self, batch: int) -> bool:
        """On a CPU, running out of memory may take the whole machine along: foresee it."""
        if self.device.get("type") != "cpu" or not self._known:
            return False
        largest = max(self._known)
        available = _available_memory()
        likely = self._known[largest] * batch / largest
        return available is not None and batch > largest and likely > _MOST_OF_MEMORY * available


def _checked(reply: Reply, entry: Entry) -> Json:
    facts = reply.facts
    outcome = facts["outcome"]
    if outcome == "measured":
        return facts
    if outcome == "no_steps":
        raise BatchError(
            f"expected {entry.path} to make training steps, found that {facts['why']}; "
            "steps are told by torch optimizers",
            entry.path,
        )
    if outcome == "too_short":
        raise BatchError(
            f"expected {entry.path} to make enough training steps to time a few, found "
            f"{facts['steps_seen']}; let it run longer",
            entry.path,
        )
    raise BatchError(_failure(facts["error"], entry), *_place(facts["error"], entry))


def _failure(error: Json, entry: Entry) -> str:
    file, line = _place(error, entry)
    where = f"{file}:{line}" if line else file
    return (
        f"expected {entry.path} to train at several batch sizes, found {error['type']} at {where}: "
        f"{error['message']}"
    )


def _place(error: Json, entry: Entry) -> tuple[str, int | None]:
    return error.get("file") or entry.path, error.get("line")


def _notes(entry: Entry, found: Sweep, plan: Plan) -> list[str]:
    notes = []
    facts = [one.facts for rounds in found.rounds.values() for one in rounds]
    ranges = [one["input_elements"] for one in facts]
    if any(low < 0.95 * high for low, high in ranges):
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        notes.append(
            f"inputs vary in size from step to step ({low:,} to {high:,} elements); the longest "
            "were taken"
        )
    if not all(one["exact"] for one in facts):
        notes.append(
            "this build of torch does not count what was allocated before recording began: memory "
            "is a lower bound"
        )
    fewest = min(len(one["steps_ms"]) for one in facts)
    if fewest < plan.effort.least:
        notes.append(f"the script ended early: some times are the median of {fewest} steps only")
    if found.stable is False:
        notes.append(f"times still changed by more than 2 % in round {plan.rounds}")
    if found.rounds and entry.batch not in found.rounds:
        notes.append(f"batch size {entry.batch} itself does not fit into memory")
    return notes


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return 1024 * int(words[1]) if words else None
