"""The measurements of one entry, each batch size in a fresh process, with warnings; and its memory
without computing, as estimated with fake tensors.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.base.scratch import listed_writes
from stepscope.errors import BatchError
from stepscope.models.batch_size.breakdown import StepBreakdown, read_breakdown
from stepscope.models.batch_size.entry import Entry
from stepscope.models.batch_size.fit import Model, fit_peaks
from stepscope.models.batch_size.measurement import MeasuredBatch, whole_points
from stepscope.models.batch_size.sweep import POINTS, Plan, Progress, Sweep
from stepscope.models.batch_size.worker_process import Cancelled, Reply, Worker
from stepscope.record.batch_size.request import DeviceFacts, RunError, RunFacts
from stepscope.record.memory_budget import available_bytes

_MOST_OF_MEMORY = 0.9  # of what is available, that a step may take
_INEXACT = {
    "pytorch": "this build of torch does not count what was allocated before recording began: "
    "memory is a lower bound",
    "jax": "XLA's buffer assignment of a program compiled ahead of time is unknown: memory is "
    "that of its arrays, a lower bound",
}
_ONE_BATCH = 0.01  # how far the samples of a step may be from the batch size


@dataclass(frozen=True)
class MemoryEstimate:
    """Peak memory on a CPU, as estimated with fake tensors."""

    batch: int  # the batch size that `memory` and `modules` are of
    bytes: Mapping[int, int]
    # The peak by kind: weights, buffers, gradients, optimizer_state, activations, temporaries.
    memory: Mapping[str, int]
    modules: Sequence[dict[str, Any]]
    model: Model | None = None  # the peak over the batch size; None for a single size
    error: float | None = None  # relative to the peak measured at `batch`; None where none was

    def to_json(self) -> dict[str, Any]:
        """As `stepscope batch --json` has it."""
        model = self.model
        return {
            "batch": self.batch,
            "points": [{"batch": batch, "bytes": size} for batch, size in self.bytes.items()],
            "memory": dict(self.memory),
            "modules": list(self.modules),
            "model": model and {"c_bytes": model.slope, "d_bytes": model.intercept},
            "error": self.error,
        }


def estimate_at(worker: Worker, entry: Entry, batch: int, timeout_s: float, as_gpu: bool = False) -> RunFacts:
    """Memory at one batch size without computing; raises BatchError if the script cannot run on fake
    tensors; says why."""
    facts = worker.run(entry.request(batch, estimate=True, as_gpu=as_gpu, timeout_s=timeout_s)).facts
    if facts["outcome"] == "estimated":
        return facts
    error: RunError = facts.get("error", {})
    reason = error.get("message") or facts.get("why") or facts["outcome"].replace("_", " ")
    raise BatchError(
        f"{entry.path} does not run on tensors without values: {reason}", error.get("file"), error.get("line")
    )


class EntryMeasuring:
    """The measurements of one entry."""

    def __init__(self, entry: Entry, plan: Plan, worker: Worker) -> None:
        self.entry, self.plan, self.worker = entry, plan, worker
        self.device: DeviceFacts = {}
        self.notes: list[str] = []
        self.ran_out_at: tuple[str, int | None] = (entry.path, None)
        self._known: dict[int, int] = {}
        self.capture: Path | None = None  # gone with the session, or when measured again
        self.captured_batch: int | None = None
        self._is_jax = False  # whose memory XLA knows without running
        self.program_memory: dict[str, int] = {}

    def measure(self, batch: int) -> MeasuredBatch | None:
        """Once, in a fresh process; the first also records what the step is made of."""
        if self._surely_too_large(batch):
            return None
        records = self.plan.breakdown and self.capture is None
        capture = self._folder() / f"batch{batch}.stepscope" if records else None
        request = self.entry.request(
            batch,
            effort=self.plan.effort,
            capture=str(capture) if capture else None,
            timeout_s=self.plan.timeout_s,
        )
        reply = self.worker.run(request)
        if reply.facts["outcome"] == "out_of_memory":
            self.ran_out_at = _place(reply.facts["error"], self.entry)
            return None
        facts = _checked(reply, self.entry)
        power = facts.get("power")
        self.device = facts["device"] | {"energy_counter": power["source"] if power else None}
        self._is_jax = facts["framework"] == "jax"
        self._known[batch] = facts["bytes"]
        if batch == self.entry.batch:
            self.program_memory = facts.get("memory") or {}
        if capture is not None and capture.exists():
            self.capture, self.captured_batch = capture, batch
        return MeasuredBatch(batch, tuple(facts["steps_ms"]), facts["bytes"], facts)

    def _folder(self) -> Path:
        """For captures of this entry, which stay until it is measured again."""
        name = hashlib.sha256(self.entry.path.encode("utf-8", "surrogateescape")).hexdigest()[:16]
        folder = self.worker.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def breakdown(self, swept: Sweep) -> StepBreakdown | None:
        """The breakdown of the recorded batch size; None in JAX, whose memory XLA assigns."""
        batch, capture = self.captured_batch, self.capture
        if self._is_jax or capture is None or batch is None:
            return None
        ms = next(point.ms for point in swept.points() if point.batch == batch)
        return read_breakdown(capture, batch, ms)

    def estimate(self, swept: Sweep, progress: Progress) -> MemoryEstimate | None:
        """Memory without computing, at the batch sizes measured; a note where that fails."""
        if not self.plan.estimate or self.device.get("type") != "cpu" or self._is_jax:
            return None
        progress("memory without computing", len(swept.rounds), len(swept.rounds) + 1)
        batches, timeout_s = list(swept.rounds)[:POINTS], self.plan.timeout_s
        try:
            facts = [estimate_at(self.worker, self.entry, batch, timeout_s) for batch in batches]
        except Cancelled:
            raise
        except BatchError as error:
            self.notes.append(f"memory could not be estimated without running: {error}")
            return None
        first, sizes = facts[0], [each["bytes"] for each in facts]
        measured = swept.rounds[batches[0]][0].bytes
        return MemoryEstimate(
            batches[0],
            dict(zip(batches, sizes, strict=True)),
            first["memory"],
            first["modules"],
            fit_peaks(batches, sizes) if len(sizes) > 1 else None,
            first["bytes"] / measured - 1 if measured else None,
        )

    def warnings(self, swept: Sweep) -> list[str]:
        """What the user should know of the measurements."""
        steps, rounds = _of_steps(swept, self.plan), _of_rounds(self.entry, swept, self.plan)
        return [*self.notes, *steps, *rounds]

    def _surely_too_large(self, batch: int) -> bool:
        """On a CPU, running out of memory may take the whole machine along: foresee it."""
        if self.device.get("type") != "cpu" or not self._known:
            return False
        largest = max(self._known)
        available = available_bytes()
        likely = self._known[largest] * batch / largest
        return available is not None and batch > largest and likely > _MOST_OF_MEMORY * available


def _checked(reply: Reply, entry: Entry) -> RunFacts:
    facts = reply.facts
    outcome = facts["outcome"]
    if outcome == "measured":
        return facts
    if outcome == "no_steps":
        raise BatchError(
            f"{entry.path} made no training step: {facts['why']}; "
            "steps are detected by torch optimizers and by functions under jax.jit",
            entry.path,
        )
    if outcome == "too_short":
        raise BatchError(
            f"{entry.path} ended after {facts['steps_seen']} training steps, too few to time; let "
            "it run longer",
            entry.path,
        )
    error = facts["error"]
    file, line = _place(error, entry)
    where = f"{file}:{line}" if line else file
    message = f"{entry.path} fails: {error['type']} at {where}: {error['message']}"
    if error["type"] == "SystemExit" and (last := reply.output.strip()):
        message += f"; its last output: {last.splitlines()[-1]}"
    raise BatchError(message, file, line)


def _place(error: RunError, entry: Entry) -> tuple[str, int | None]:
    return error.get("file") or entry.path, error.get("line")


def _of_steps(swept: Sweep, plan: Plan) -> list[str]:
    """Warnings from the steps: varying inputs, memory not counted, too few to time."""
    facts = [measured.facts for rounds in swept.rounds.values() for measured in rounds]
    notes = _of_samples(swept)
    if paths := listed_writes(path for fact in facts for path in fact.get("outside_writes", ())):
        notes.insert(
            0, f"the script also writes files outside its project, which stay after each run: {paths}"
        )
    low, high = min((fact["input_elements"] for fact in facts), key=lambda sizes: sizes[0] / max(sizes[1], 1))
    if low < 0.95 * high:
        notes.append(
            f"inputs of one batch size vary from step to step ({low:,} to {high:,} elements); "
            "the longest were taken"
        )
    if not all(fact["exact"] for fact in facts):
        notes.append(_INEXACT[facts[0]["framework"]])
    fewest = min(len(fact["steps_ms"]) for fact in facts)
    if fewest < plan.effort.least:
        notes.append(f"the script ended early: some times are the median of {fewest} steps only")
    return notes


def _of_samples(swept: Sweep) -> list[str]:
    points = [point for point in whole_points(swept.points()) if point.samples]
    ratios = [point.samples / point.batch for point in points if point.samples]
    if not ratios or all(abs(ratio - 1) < _ONE_BATCH for ratio in ratios):
        return []
    low, high = min(ratios), max(ratios)
    times = f"{low:.3g}" if high - low < _ONE_BATCH else f"{low:.3g} to {high:.3g}"
    return [
        f"a step processes {times} times the batch size (gradient accumulation, or a batch divided "
        "among devices); throughput counts the samples that the data loader handed out"
    ]


def _of_rounds(entry: Entry, swept: Sweep, plan: Plan) -> list[str]:
    """Warnings from the sweep: times that still changed, a batch size that did not fit."""
    notes = []
    if swept.stable is False:
        notes.append(f"times still changed by more than 2 % in round {plan.rounds}")
    if swept.rounds and entry.batch not in swept.rounds:
        notes.append(f"batch size {entry.batch} does not fit into memory")
    return notes
