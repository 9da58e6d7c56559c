"""What the page's what-if pane shows: the changes, a prediction, and two simulated timelines.

In a timeline, tasks too short to see are merged, so that it has few rectangles.
"""

from collections.abc import Sequence
from functools import cached_property

import msgspec
import numpy as np

from stepscope.base.arrays import Ids, Times
from stepscope.errors import StepscopeError
from stepscope.graph import Graph, Simulation
from stepscope.models.whatif import CHANGES, Change, Prediction, Request, parse_request
from stepscope.models.whatif.change import Parameter
from stepscope.models.whatif.prediction import Baseline
from stepscope.models.whatif.ranking import graph_of
from stepscope.trace.trace import Trace

_FINEST = 64  # the first resolution is so many times finer than one rectangle per slot


class ListedChange(msgspec.Struct, frozen=True):
    """A change, and whether it applies to the trace with its defaults.

    Attributes:
        reason: why it does not apply, or which parameters it needs.
    """

    name: str
    summary: str
    parameters: list[Parameter]
    assumptions: list[str]
    applies: bool
    reason: str


class SimulatedThread(msgspec.Struct, frozen=True):
    """A row of both timelines."""

    name: str
    kind: str
    rank: int


class Rectangles(msgspec.Struct, frozen=True):
    """A simulated timeline: columns of equal length, by thread and time.

    Attributes:
        length_us: of all steps together.
        thread: threads.id.
        name, stage, kind: of the longest task that a rectangle merges; null if it has none.
        tasks: how many tasks a rectangle merges.
    """

    length_us: float
    thread: list[int]
    start_us: list[float]
    duration_us: list[float]
    name: list[str | None]
    stage: list[str | None]
    kind: list[str | None]
    tasks: list[int]


class SimulatedTimelines(msgspec.Struct, frozen=True):
    """The steps simulated without and with the changes."""

    threads: list[SimulatedThread]
    before: Rectangles
    after: Rectangles


class PaneAnswer(msgspec.Struct, frozen=True):
    """A prediction, as `stepscope whatif --json` prints it, and the timelines."""

    answer: Prediction
    timeline: SimulatedTimelines


class Pane:
    """The what-ifs of one trace; the graph is built once.

    Args:
        rank: one rank alone; by default all ranks of the trace together.
        step: one step; by default the longest run of consecutive steps.

    Raises:
        TraceError: if there is no such step.
    """

    def __init__(self, trace: Trace, rank: int | None = None, step: int | None = None) -> None:
        self._baseline = Baseline(graph_of(trace, step, rank))
        self._drawn: dict[int, Rectangles] = {}

    @property
    def graph(self) -> Graph:
        """The graph without a change."""
        return self._baseline.graph

    @cached_property
    def changes(self) -> list[ListedChange]:
        """Every change."""
        return [
            ListedChange(
                change.name,
                change.summary,
                list(change.parameters.values()),
                list(change.assumptions),
                *self._applies(change),
            )
            for change in CHANGES.values()
        ]

    def answer(self, changes: Sequence[str], most: int = 2000) -> PaneAnswer:
        """The prediction, and the timelines before and after.

        Args:
            changes: as on the command line (`bandwidth:factor=2`), in the order of application.

        Raises:
            ChangeError: if there is no such change or one does not apply, with the reason.
        """
        requests = [parse_request(text, CHANGES) for text in changes]
        prediction, after = self._baseline.predict(requests)
        if most not in self._drawn:
            self._drawn[most] = rectangles(self._baseline.simulation, most)
        threads = after.graph.threads
        facts = zip(threads.text("name"), threads.text("kind"), threads["rank"], strict=True)
        rows = [SimulatedThread(name or "", kind or "", int(rank)) for name, kind, rank in facts]
        timeline = SimulatedTimelines(rows, self._drawn[most], rectangles(after, most))
        return PaneAnswer(prediction, timeline)

    def _applies(self, change: Change) -> tuple[bool, str]:
        if change.needed:
            return True, f"needs {' and '.join(change.needed)}"
        try:
            Request(change).apply(self.graph)
        except StepscopeError as error:
            return False, str(error).removeprefix(f"{change.name}: ")
        return True, ""


def rectangles(simulation: Simulation, most: int) -> Rectangles:
    """At most `most` rectangles for the tasks of a simulation.

    Tasks shorter than a resolution are merged with their neighbors on the thread, across gaps no
    longer than it; the finest resolution with few enough rectangles counts. Tasks without length
    are left out.

    Args:
        most: the maximum; a thread with work has at least one.
    """
    tasks = simulation.graph.tasks
    rows = np.flatnonzero(tasks["duration_ns"] > 0)
    rows = rows[np.lexsort((simulation.start_ns[rows], tasks["thread"][rows]))]
    length_us = simulation.last_end_ns / 1000
    if not len(rows):
        return Rectangles(length_us, [], [], [], [], [], [], [])
    start, end = simulation.start_ns[rows], simulation.end_ns[rows]
    first, count, longest = merged_intervals(tasks["thread"][rows], start, end, most)
    longest = rows[longest]
    names, stages, kinds = (list(tasks.text(one).take(longest)) for one in ("name", "stage", "kind"))
    return Rectangles(
        length_us=length_us,
        thread=tasks["thread"][rows[first]].tolist(),
        start_us=(start[first] / 1000).tolist(),
        duration_us=((np.maximum.reduceat(end, first) - start[first]) / 1000).tolist(),
        name=names,
        stage=stages,
        kind=kinds,
        tasks=count.tolist(),
    )


def _in_order(simulation: Simulation) -> Ids:
    visible = np.flatnonzero(simulation.graph.tasks["duration_ns"] > 0)
    thread = simulation.graph.tasks["thread"][visible]
    return visible[np.lexsort((simulation.start_ns[visible], thread))]


def _firsts(label: Ids, start: Times, end: Times, width: int) -> Ids:
    """The first interval of each merged one, at a resolution of `width` ns."""
    short = end - start < width
    together = (label[1:] == label[:-1]) & short[1:] & short[:-1]
    together &= start[1:] - end[:-1] <= width
    # A run of short intervals is cut now and then, so that its content stays visible.
    together &= start[1:] // (16 * width) == start[:-1] // (16 * width)
    return np.flatnonzero(np.append(True, ~together))


def merged_intervals(label: Ids, start: Times, end: Times, most: int) -> tuple[Ids, Ids, Ids]:
    """The first of the intervals that each rectangle merges, their number, and the longest."""
    first = merge_short(label, start, end, most)
    count = np.diff(np.append(first, len(label)))
    group = np.repeat(np.arange(len(first)), count)
    order = np.lexsort((start - end, group))
    return first, count, order[np.searchsorted(group, np.arange(len(first)))]


def merge_short(label: Ids, start: Times, end: Times, most: int) -> Ids:
    """Merge intervals too short to see with their neighbors, until few enough are left.

    Args:
        label: only neighbors with the same label are merged, shape (n,), n at least 1.
        start, end: ns, shape (n,), in order of time for each row that is drawn.
        most: the maximum; each label that has an interval keeps at least one.

    Returns:
        The first interval of each merged one, shape (merged,).

    Example:
        >>> import numpy as np
        >>> start = np.array([0, 2, 4, 100])
        >>> merge_short(np.zeros(4, int), start, start + 1, 2).tolist()
        [0, 3]
    """
    width = max(int(end.max() - start.min()) // (most * _FINEST), 1)
    first = np.arange(len(start))
    while len(first) > most:
        joined = _firsts(label, start, end, width)
        if width > end.max():
            return joined
        first, width = joined, width * 2
    return first
