"""The page about a watched run: every step that its file keeps, and its bill, also while it goes on.

Steps go to the page as columns of numbers, 28 bytes each: at most 7.3 MB, as a file keeps the latest
262,144. The page condenses them for each zoom, and asks for those that it lacks while the run goes on.
"""

from __future__ import annotations

import gzip
import re
import time
from base64 import b64encode
from collections.abc import Callable, Sequence
from glob import escape
from pathlib import Path

import msgspec
import numpy as np

from stepscope.base.arrays import Array
from stepscope.base.json_text import json_bytes
from stepscope.base.watch_format import TIMES
from stepscope.errors import ServeError
from stepscope.faces.page.bundle import page_in_one
from stepscope.faces.page.requests import filled
from stepscope.facts.watched import BY_LINE, CAUSES, Bill, bill_of, sentence_of, slow_rank, verdict_of
from stepscope.read.watched_run import WatchedRun, read_watched_run

ELEMENT = "stepscope-watch"
PARTS_OF_STEP = 4_000  # units of a share: 0.025 % of a step; finer ones are noise, and larger in gzip
_REST = 20.0  # times as long as a bill of a growing file takes, it is shown
_FIELDS = {cause: field for field, cause in (CAUSES | BY_LINE).items()}
_START = "start, with the first step"


class WatchLoss(msgspec.Struct):
    """Time that a run lost to one cause, or that a line took; several may overlap."""

    cause: str
    field: str  # whose share of a step it is; `start` for that of the run, empty if no step tells it
    lost_s: float
    share: float  # of the run
    where: str


class WatchSlow(msgspec.Struct):
    """Unusually slow steps from `first` to `last`."""

    sentence: str  # what is known of them
    cause: str
    where: str  # the line to blame, empty if not known
    first: int
    last: int
    count: int
    numbers: list[int]  # of the first 1,000, where other steps lie between them; else empty
    ratio: float  # of the usual step
    lost_s: float


class WatchRecording(msgspec.Struct):
    """A recording of a few steps, beside the file."""

    step: int  # where it begins, about
    file: str
    trace: str | None  # its id on this server, null in a single file


class WatchDevice(msgspec.Struct):
    """What a device reported, in order of time."""

    at_ns: list[float]  # since the start of the program
    clock_mhz: list[float]
    watts: list[float]
    celsius: list[float]
    reasons: list[int]  # NVML's bits for a low clock
    retries: list[int]  # how often the allocator had given memory back to get some


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
    file: str
    command: str
    rank: int
    ranks: list[int]
    outcome: str  # empty while the run goes on, or if it was killed
    written_s: float  # ago
    on_device: bool  # whether times are the CPU's, and a device does the work
    run_ns: float  # from the start of the program to the last write of the file
    steps: int  # all; of these the latest are in `columns`
    usual_ms: float  # a step without evaluation and checkpoint, median
    verdict: str
    losses: list[WatchLoss]  # largest first
    lines: list[WatchLoss]  # where the training thread was, by samples
    slow: list[WatchSlow]  # the most expensive first
    recordings: list[WatchRecording]
    device: WatchDevice
    columns: StepColumns


class WatchedJob:
    """The files of a watched job, which may still grow; the bill of a growing one is kept for a while."""

    def __init__(self, name: str, files: Sequence[Path]) -> None:
        runs = {file: read_watched_run(file) for file in files}
        self.name, self.files = name, {run.facts.rank: file for file, run in sorted(runs.items(), key=_rank)}
        slow = slow_rank([*runs.values()])
        self.first_shown = slow.rank if slow else min(self.files)
        self._bills: dict[int, tuple[tuple[int, int], Bill, float]] = {}

    def answer(
        self, rank: int | None = None, after: int | None = None, id_of: Callable[[Path], str] | None = None
    ) -> WatchAnswer:
        """What the page shows of a rank: all steps, or those after one.

        Raises:
            StepscopeError: if there is no such rank, or its file cannot be read any more.
        """
        rank = self.first_shown if rank is None else rank
        if rank not in self.files:
            raise ServeError(f"no rank {rank}; there are {', '.join(map(str, self.files))}", 404)
        run = read_watched_run(self.files[rank])
        steps = run.steps if after is None else run.steps[run.steps["step"] > after]
        bill = self._bill(rank, run)
        zero_ns = run.facts.begun_unix_ns - run.facts.created_unix_ns
        return filled(
            WatchAnswer,
            bill,
            id=f"{rank}.{run.facts.created_unix_ns}",
            name=self.name,
            file=self.files[rank].name,
            command=run.facts.command,
            rank=rank,
            ranks=[*self.files],
            outcome=run.facts.outcome,
            written_s=1e-9 * (time.time_ns() - run.updated_unix_ns),
            on_device=run.facts.on_device,
            run_ns=float(max(run.updated_unix_ns - run.facts.created_unix_ns, 1)),
            steps=int(run.totals["count"]),
            verdict=verdict_of(bill),
            losses=[filled(WatchLoss, loss, field=_field(loss.cause)) for loss in bill.losses],
            lines=[filled(WatchLoss, line, field="") for line in bill.lines],
            slow=[filled(WatchSlow, slow, sentence=sentence_of(slow)) for slow in bill.slow],
            recordings=_recordings(self.files[rank], id_of),
            device=_device(run.device, zero_ns),
            columns=_columns(steps, run, zero_ns),
        )

    def _bill(self, rank: int, run: WatchedRun) -> Bill:
        known, bill, until = self._bills.get(rank, ((0, 0), None, 0.0))
        stands = (run.facts.created_unix_ns, run.updated_unix_ns)
        begun = time.monotonic()
        is_old = known != stands and (begun >= until or run.facts.outcome or known[0] != stands[0])
        if bill is None or is_old:
            bill = bill_of(run)
            spent = time.monotonic() - begun
            self._bills[rank] = (stands, bill, begun + (1 + _REST) * spent)
        return bill


def watch_page(answer: WatchAnswer) -> str:
    """The page about a watched run with its data, as HTML that needs nothing else."""
    data = b64encode(gzip.compress(json_bytes(answer), mtime=0)).decode()
    # Base64 has no character that could end the element.
    return page_in_one(
        f'<script type="application/octet-stream" id="{ELEMENT}">{data}</script>\n', "watch.html"
    )


def _rank(known: tuple[Path, WatchedRun]) -> int:
    return known[1].facts.rank


def _field(cause: str) -> str:
    return "start" if cause == _START else _FIELDS.get(cause, "")


def _recordings(file: Path, id_of: Callable[[Path], str] | None) -> list[WatchRecording]:
    """What `stepscope record` wrote beside the file, by step."""
    found = []
    for path in file.parent.glob(f"{escape(file.stem)}-step*.stepscope"):
        if number := re.search(r"-step(\d{1,18})\.stepscope$", path.name):
            found.append(WatchRecording(int(number[1]), path.name, id_of(path) if id_of else None))
    return sorted(found, key=lambda recording: recording.step)


def _device(rows: Array, zero_ns: int) -> WatchDevice:
    rows = np.sort(rows, order="ns")
    whole = (rows[name].astype(np.int64).tolist() for name in ("reasons", "retries"))
    return WatchDevice(
        (rows["ns"] + zero_ns).tolist(),
        *(rows[name].tolist() for name in ("clock", "power", "temperature")),
        *whole,
    )


def _columns(rows: Array, run: WatchedRun, zero_ns: int) -> StepColumns:
    """Rows, of which the first may follow others of the run."""
    at = len(run.steps) - len(rows)
    before = run.steps[at - 1 : at] if at else rows[:1]
    ends = np.concatenate([before["begin_ns"] + before["wall_ns"], rows["begin_ns"] + rows["wall_ns"]])
    numbers = np.concatenate([before["step"], rows["step"]])
    if not at and len(rows):  # nothing is before the first
        ends[0], numbers[0] = rows["begin_ns"][0], rows["step"][0] - 1
    wall_ms = 1e-6 * rows["wall_ns"]
    shares = {name: np.clip(rows[name] / np.maximum(wall_ms, 1e-6), 0, 1) for name in TIMES}
    return StepColumns(
        first=int(rows["step"][0]) if len(rows) else 0,
        count=len(rows),
        begin_ns=float(rows["begin_ns"][0] + zero_ns) if len(rows) else 0.0,
        skipped=_base64(np.clip(np.diff(numbers) - 1, 0, 65_535), "<u2"),
        gap_ms=_base64(1e-6 * (rows["begin_ns"] - ends[:-1]), "<f4"),
        wall_ms=_base64(wall_ms, "<f4"),
        shares={name: _base64(np.round(PARTS_OF_STEP * share), "<u2") for name, share in shares.items()},
    )


def _base64(values: Array, kind: str) -> str:
    return b64encode(values.astype(kind).tobytes()).decode()
