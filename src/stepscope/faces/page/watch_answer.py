"""The page about a watched run: every step that its file keeps, and its bill, also while it goes on.

Steps go to the page as columns of numbers, 30 bytes each: at most 7.4 MB, as a file keeps the latest
248,000. The page condenses them for each zoom, and asks for those that it lacks while the run goes on.
"""

import gzip
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path

import msgspec
import numpy as np

from stepscope.base.arrays import Array
from stepscope.base.json_text import json_bytes
from stepscope.base.watch_format import OF_CPU
from stepscope.errors import ServeError
from stepscope.faces.page.bundle import bytes_element, page_in_one
from stepscope.faces.page.requests import filled
from stepscope.facts import watched
from stepscope.facts.slow_steps import UnusualSteps, sentence_of
from stepscope.read.watched_run import WatchedRun, WatchedRunFacts, read_watched_run

ELEMENT = "stepscope-watch"
PARTS_OF_STEP = 4_000  # units of a share: 0.025 % of a step; finer ones are noise, and larger in gzip
_REST = 20.0  # times as long as a bill of a growing file takes, it is shown


class StepColumns(msgspec.Struct):
    """Steps in order; each column is the base64 of little-endian numbers."""

    first: int  # number of the first
    count: int  # of these steps
    begin_ns: float  # of the first, since the start of the program
    skipped: str  # uint16: missing steps before each
    gap_ms: str  # float32: from the end of the step before
    wall_ms: str  # float32
    # uint16, in 1/4000 of the step: `input`, `backward`, `optimizer`, `evaluation` and `checkpoint` follow
    # one another; others overlap with them
    shares: dict[str, str]


class WatchAnswer(msgspec.Struct):
    """One rank of a watched run."""

    id: str  # another one for another run
    name: str  # of the file or the folder
    facts: WatchedRunFacts
    ranks: list[int]
    written_s: float  # ago
    run_s: float  # from the start of the program to the last write of the file
    steps: int  # all; of these the latest are in `columns`
    usual_ms: float  # a step without evaluation and checkpoint, median
    verdict: str
    losses: list[watched.Loss]  # largest first
    without_first: str  # what the run would take without the first of them; empty if none is notable
    fields: dict[str, str]  # of `shares` in `columns`, by cause of a loss
    lines: list[watched.Loss]  # where the training thread was, by samples
    roles: list[watched.RoleTime]  # what processes wait for, who waits least first
    limiting_role: str  # which all others wait for
    slow: list[UnusualSteps]  # the most expensive first
    sentences: list[str]  # what is known of each of these
    # the step where each begins, about, its file, and its id on this server, null in a single file
    recordings: list[tuple[int, str, str | None]]
    # ns since the start of the program, MHz, W, °C, NVML's reasons for a low clock as bits, and how often
    # the allocator had given memory back to get some
    device: list[tuple[float, float, float, float, float, float]]
    columns: StepColumns


class WatchedJob:
    """The files of a watched job, which may still grow; the bill of a growing one is kept for a while."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        runs = [(read_watched_run(file), file) for file in files]
        runs.sort(key=lambda pair: pair[0].facts.created_unix_ns)  # the last of a rank counts
        self.name, self.files = name, {run.facts.rank: file for run, file in runs}
        slow = watched.slow_rank([run for run, _ in runs])
        self.first_shown = slow.rank if slow else min(self.files)
        self._bills: dict[int, tuple[tuple[int, int], watched.Bill, float]] = {}

    def answer(
        self, rank: int | None = None, after: int | None = None, id_of: Callable[[Path], str] | None = None
    ) -> WatchAnswer:
        """What the page shows of a rank: all steps, or those after one; raises StepscopeError if there is no
        such rank, or its file cannot be read any more."""
        rank = self.first_shown if rank is None else rank
        if rank not in self.files:
            raise ServeError(f"no rank {rank}; there are {', '.join(map(str, self.files))}", 404)
        run = read_watched_run(self.files[rank])
        at = 0 if after is None else int(np.searchsorted(run.steps["step"], after, side="right"))
        bill = self._bill(rank, run)
        zero_ns = run.facts.begun_unix_ns - run.facts.created_unix_ns
        device = np.sort(run.device, order="ns")
        device["ns"] += zero_ns
        return filled(
            WatchAnswer,
            bill,
            id=f"{rank}.{run.facts.created_unix_ns}",
            name=self.name,
            ranks=sorted(self.files),
            written_s=1e-9 * (time.time_ns() - run.updated_unix_ns),
            steps=int(run.totals["step"]),
            verdict=watched.verdict_of(bill),
            without_first=watched.without_first(bill),
            fields=watched.FIELDS,
            sentences=[sentence_of(slow) for slow in bill.slow],
            recordings=_recordings(self.files[rank], id_of),
            device=device.tolist(),
            columns=_columns(run.steps, at, zero_ns),
        )

    def _bill(self, rank: int, run: WatchedRun) -> watched.Bill:
        known, bill, until = self._bills.get(rank, ((0, 0), None, 0.0))
        stands = (run.facts.created_unix_ns, run.updated_unix_ns)
        begun = time.monotonic()
        is_due = begun >= until or run.facts.outcome or known[0] != stands[0]
        if bill is None or (known != stands and is_due):
            bill = watched.bill_of(run)
            self._bills[rank] = (stands, bill, begun + (1 + _REST) * (time.monotonic() - begun))
        return bill


def watch_page(answer: WatchAnswer) -> str:
    """The page about a watched run with its data, as HTML that needs nothing else."""
    return page_in_one(bytes_element(ELEMENT, gzip.compress(json_bytes(answer), mtime=0)), "watch.html")


def _recordings(file: Path, id_of: Callable[[Path], str] | None) -> list[tuple[int, str, str | None]]:
    """What `stepscope record` wrote beside the file, by step."""
    paths = file.parent.glob(f"{escape(file.stem)}-step*.stepscope")
    steps = {path: path.stem.rpartition("-step")[2] for path in paths}
    named = ((int(step), path) for path, step in steps.items() if step.isdecimal())
    return sorted((step, path.name, id_of(path) if id_of else None) for step, path in named)


def _columns(steps: Array, at: int, zero_ns: int) -> StepColumns:
    """The steps from a place on."""
    begin_ns, wall_ms = steps["begin_ns"], 1e-6 * steps["wall_ns"][at:]
    ends_ns = np.concatenate([begin_ns[:1], (begin_ns + steps["wall_ns"])[:-1]])
    skipped = np.diff(steps["step"], prepend=steps["step"][:1] - 1) - 1
    shares = {name: np.clip(steps[name][at:] / np.maximum(wall_ms, 1e-6), 0, 1) for name in OF_CPU}
    return StepColumns(
        first=int(steps["step"][at : at + 1].sum()),
        count=len(wall_ms),
        begin_ns=float(begin_ns[at : at + 1].sum() + zero_ns),
        skipped=_base64(np.clip(skipped[at:], 0, 65_535), "<u2"),
        gap_ms=_base64(1e-6 * (begin_ns - ends_ns)[at:], "<f4"),
        wall_ms=_base64(wall_ms, "<f4"),
        shares={name: _base64(np.round(PARTS_OF_STEP * share), "<u2") for name, share in shares.items()},
    )


def _base64(values: Array, kind: str) -> str:
    return b64encode(values.astype(kind).tobytes()).decode()
