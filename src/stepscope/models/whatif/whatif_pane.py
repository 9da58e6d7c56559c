"""What the page shows of what-ifs: the changes, a prediction, and two simulated timelines."""

from collections.abc import Sequence
from functools import cached_property, partial

import msgspec
import numpy as np

from stepscope.base.arrays import Array, Ids
from stepscope.errors import ChangeError
from stepscope.facts.timeline.pairs import PairThread, Pieces, Rectangles, align, paired
from stepscope.graph import Graph, Simulation
from stepscope.models.whatif import CHANGES, Change, Prediction, Request, parse_request
from stepscope.models.whatif.change import Parameter
from stepscope.models.whatif.prediction import Baseline
from stepscope.models.whatif.ranking import graph_of
from stepscope.trace.intervals import Intervals
from stepscope.trace.sets import Interner
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

_MOST_CHANGES = 200  # chosen: more than have names; a message could ask for hours of work


class ListedChange(msgspec.Struct, frozen=True):
    """A change, and whether it applies to the trace with its defaults."""

    name: str
    summary: str
    parameters: list[Parameter]
    assumptions: list[str]
    applies: bool
    reason: str  # why it does not apply, or which parameters it needs


class Pane:
    """The what-ifs of one step or, by default, the longest run of consecutive steps, of one rank or, by
    default, of all together; raises TraceError if there is no such step. The graph is built once."""

    def __init__(self, trace: Trace, rank: int | None = None, step: int | None = None) -> None:
        self._baseline = Baseline(graph_of(trace, step, rank))

    @property
    def graph(self) -> Graph:
        """The graph without a change."""
        return self._baseline.graph

    @cached_property
    def changes(self) -> list[ListedChange]:
        """Every change."""
        return [
            ListedChange(
                one.name, one.summary, [*one.parameters.values()], [*one.assumptions], *self._applies(one)
            )
            for one in CHANGES.values()
        ]

    def answer(self, changes: Sequence[str]) -> Prediction:
        """The prediction of changes such as `bandwidth:factor=2`, in order of application, as
        `stepscope whatif --json` prints it; raises ChangeError if there is none such or one does
        not apply, with the reason."""
        return self._baseline.predict(_parsed(changes))[0]

    def timelines(
        self, changes: Sequence[str], rank: int, most: int
    ) -> tuple[list[PairThread], Rectangles, Rectangles]:
        """The steps of a rank simulated without and with the changes, as `answer` takes them, since
        its first task, with at `most` so many rectangles each; raises ChangeError as that does.

        A task's partner is the task of the same event; changes add and remove tasks.
        """
        before, after = self._baseline.simulation, self._baseline.predict_time(_parsed(changes))[0]
        rows = [_tasks_of(simulation, rank) for simulation in (before, after)]
        begin = _extent_of(before, rank)[0]
        names = [_thread_names(simulation) for simulation in (before, after)]
        threads: Interner[PairThread] = Interner()
        codes = [threads.codes(known).astype(np.int64) for known in names]
        idle = threads[PairThread("idle", "idle", rank)] if before.graph.on_device[rows[0]].any() else -1
        sides = [
            _pieces(simulation, some, _extent_of(simulation, rank)[1], begin, code, idle)
            for simulation, some, code in zip((before, after), rows, codes, strict=True)
        ]
        partner = align([sides[0].event], [sides[1].event], [(0,)])
        partner[sides[0].event < 0] = -1
        return list(threads), *paired(sides[0], sides[1], partner, most)

    def _applies(self, change: Change) -> tuple[bool, str]:
        if change.needed:
            return True, f"needs {' and '.join(change.needed)}"
        error = Request(change).refusal(self.graph)
        return error is None, change.reason(error) if error else ""


def _parsed(changes: Sequence[str]) -> list[Request]:
    if len(changes) > _MOST_CHANGES:
        raise ChangeError(f"expected at most {_MOST_CHANGES} changes at a time, found {len(changes)}")
    return [parse_request(text, CHANGES) for text in changes]


def _tasks_of(simulation: Simulation, rank: int) -> Ids:
    """The tasks of a rank that take time, by thread and start."""
    tasks, of_rank = simulation.graph.tasks, simulation.graph.threads["rank"] == rank
    rows = np.flatnonzero((tasks["duration_ns"] > 0) & of_rank[tasks["thread"]])
    return rows[np.lexsort((simulation.start_ns[rows], tasks["thread"][rows]))]


def _extent_of(simulation: Simulation, rank: int) -> tuple[int, int]:
    """When the first step of a rank begins, and when its last task ends."""
    tasks = simulation.graph.tasks
    own = (simulation.graph.threads["rank"] == rank)[tasks["thread"]]
    begins = simulation.start_ns[own & (tasks["mark"] > 0)]
    return int(begins.min(initial=begins.max(initial=0))), int(simulation.end_ns[own].max(initial=0))


def _thread_names(simulation: Simulation) -> list[PairThread]:
    threads = simulation.graph.threads
    facts = zip(threads.text("name"), threads.text("kind"), threads["rank"].tolist(), strict=True)
    return [PairThread(name or "", kind or "", rank) for name, kind, rank in facts]


def _pieces(simulation: Simulation, rows: Ids, end: int, begin: int, threads: Ids, idle: int) -> Pieces:
    """Tasks (`rows`) of a simulation from begin to end, and the time in which no device of theirs
    works; `threads` has the row of each thread, `idle` is that of idle time, -1 for none."""
    tasks = simulation.graph.tasks
    names, kinds = tasks.text("name"), tasks.text("kind")
    starts, ends = simulation.start_ns[rows] - begin, simulation.end_ns[rows] - begin
    busy = simulation.graph.on_device[rows]
    gaps = Intervals(starts[busy], ends[busy]).gaps(0, end - begin if idle >= 0 else 0)
    rows = np.append(rows, np.full(len(gaps), -1))

    def of_tasks(column: Array) -> Ids:
        return np.where(rows < 0, -1, column[rows].astype(np.int64))

    def in_words(text: Text, some: Ids) -> list[str | None]:
        known = text.take(rows[some])
        return ["idle" if row < 0 else word for row, word in zip(rows[some].tolist(), known, strict=True)]

    thread = of_tasks(tasks["thread"])
    return Pieces(
        length_ns=end - begin,
        thread=np.where(rows < 0, idle, threads[thread]),
        start_ns=np.append(starts, gaps.starts),
        end_ns=np.append(ends, gaps.ends),
        label=thread,
        stage=of_tasks(tasks.text("stage").codes),
        event=of_tasks(tasks["event"]),
        names=partial(in_words, names),
        kinds=partial(in_words, kinds),
    )
