"""Search the events of the analyzed steps of one rank, and its eager calls of operators."""

import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any, TypeVar

import msgspec
import numpy as np

from stepscope.analyze.delays import without_delays
from stepscope.analyze.source_places import what_is_called
from stepscope.analyze.trace_from_contexts import ContextTrace, trace_from_contexts
from stepscope.base.arrays import Ids, Ids32, IntArray, Mask, Rows, Times
from stepscope.errors import TraceError
from stepscope.facts.annotate.device.one_off_costs import OneOffCosts, one_off_costs
from stepscope.facts.annotate.jax.device_runs import as_module, functions_of_work
from stepscope.facts.annotate.links.launches import caller_of
from stepscope.facts.annotate.links.launches import device_work as mask_of_device_work
from stepscope.facts.annotate.steps.main_track import main_track
from stepscope.facts.annotate.steps.step_table import (
    events_in_steps,
    no_such_rank,
    require_steps,
    steady_steps,
)
from stepscope.facts.contexts import build_contexts
from stepscope.facts.roofline.operator_work import Counted, numbered_calls
from stepscope.trace.arguments import parse
from stepscope.trace.nesting import holds, innermost
from stepscope.trace.row_order import inverse, rows_by_key
from stepscope.trace.schema import MODEL_STAGES
from stepscope.trace.sets import distinct, mask_of
from stepscope.trace.trace import Trace

Made = TypeVar("Made")

_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_MODULES = r"^(stepscope\.module:|nn\.Module: )"


class EventSearch:
    """Search the events of one rank's steps.

    Args:
        trace: an annotated trace. If it holds a calling-context tree and no events, the tree is
            converted to a trace of one step.
        rank: the rank.
        first: the rank where none is asked for; by default the one whose devices work longest.

    Attributes:
        trace: without a first step that warms up.
        delayed: with all steps, as it was given.
        recorded: the same without delays by a busy machine, as is `trace`.
        recorded_steps: the analyzed steps with these delays.
        events: its table of events.
        steps: the analyzed steps of the rank.
        step_count: how many they are.
        rank: the analyzed rank.
        requested_rank: the rank that the caller asked for, or None.
        contexts: the calling-context tree where one was recorded or instructions were sampled, or None.
        context_trace: the tree converted to a trace, or None.
    """

    def __init__(self, trace: Trace, rank: int | None = None, first: int | None = None) -> None:
        known = len(trace["contexts"]) or len(trace["instruction_samples"])
        self.contexts = build_contexts(trace) if known else None
        self.context_trace: ContextTrace | None = None
        if self.contexts is not None and not len(trace.events):
            self.context_trace = trace_from_contexts(self.contexts, trace.metadata)
            trace = self.context_trace.trace
        self.requested_rank = rank
        rank = first if rank is None else rank
        self.rank = _busiest(trace) if rank is None else rank
        self.delayed, steps = trace, trace["steps"]
        self.recorded = trace = trace if self.context_trace else without_delays(trace)
        trace = trace.with_table(trace["steps"].take(steady_steps(trace["steps"])))
        self.trace = trace = trace.with_metadata(capture=trace.metadata.capture_of(self.rank))
        self.events = trace.events
        self.steps = trace["steps"].take(trace["steps"]["rank"] == self.rank)
        if not len(self.steps):
            raise TraceError(no_such_rank(trace, self.rank))
        kept = (steps["rank"] == self.rank) & np.isin(steps["step"], self.steps["step"])
        self.recorded_steps = steps.take(kept)
        self.step_count = self.context_trace.steps if self.context_trace else len(self.steps)

    def find(
        self,
        name: str = "",
        *,
        category: str | Sequence[str] = (),
        stage: str | Sequence[str] = (),
        kind: str | Sequence[str] = (),
        on_device: bool | None = None,
        inside: Rows | None = None,
    ) -> Rows:
        """Events of the steps that match every given condition.

        Args:
            name: a regular expression, searched in the event's name.
            category, stage, kind: one or several values of the trace's closed lists.
            on_device: True for device work only, False for CPU events only.
            inside: only events that run in these events or were launched by them.

        Returns:
            events.id, int64, shape (n,), in order of start.
        """
        chosen = self._of_rank.copy()
        if name:
            pattern = re.compile(name)
            chosen &= self.events.text("name").where(lambda text: bool(pattern.search(text)))
        for column, wanted in (("category", category), ("stage", stage), ("kind", kind)):
            if wanted:
                values = (wanted,) if isinstance(wanted, str) else wanted
                chosen &= self.events.text(column).mask(*values)
        if on_device is not None:
            chosen &= self.device_work if on_device else ~self.device_work
        if inside is not None:
            chosen &= self.within(inside)
        return np.flatnonzero(chosen)

    def find_functions(self, pattern: str, of_libraries: str = "^$") -> Rows:
        """The outermost calls of functions, and ranges, whose own names match (`what_is_called`).

        Or whose names with their files match `of_libraries`.
        """
        rows = self.find(category=("python", "annotation"), on_device=False)
        named, in_file = re.compile(pattern), re.compile(of_libraries)
        names = self.events.text("name").take(rows)
        called = names.where(lambda name: bool(named.search(what_is_called(name)) or in_file.search(name)))
        return self.outermost(rows[called])

    def within(self, rows: Rows) -> Mask:
        """Mask of events that run in `rows` or were launched by them, `rows` included."""
        return self.enclosing(rows) >= 0

    def enclosing(self, rows: Rows) -> Ids32:
        """For each event, the innermost of `rows` that contains or launched it, or -1."""
        around = self._around(rows)
        around[self.launched] = around[self.caller[self.launched]]
        around[rows] = rows
        return around

    def outermost(self, rows: Rows) -> Rows:
        """Those of `rows` that no other of them contains."""
        parent = self.events["parent"][rows]
        return rows[np.where(parent >= 0, self._around(rows)[parent], -1) < 0]

    def holding(self, rows: IntArray) -> Mask:
        """Mask of events that are, or contain, one of `rows`."""
        return holds(self.events["parent"], mask_of(rows, len(self.events)))

    def backward_of(self, rows: Rows) -> Rows:
        """The outermost nodes of the backward pass of what runs in `rows`."""
        origin = self.events["forward_event"]
        return self.outermost(np.flatnonzero((origin >= 0) & self.within(rows)[np.maximum(origin, 0)]))

    def with_backward(self, rows: Rows) -> Rows:
        """The outermost of `rows` and of the nodes of their backward pass."""
        return self.outermost(np.union1d(rows, self.backward_of(rows)))

    def own_ns(self, rows: Rows, spent: Times) -> Times:
        """What each of `rows` has spent, ns, without what others of them have that it contains."""
        around = np.append(self.enclosing(rows), -1)[self.events["parent"][rows]]
        inner = around >= 0
        taken = np.bincount(around[inner], spent[inner], len(self.events))
        return spent - taken[rows].astype(np.int64)

    def works_of_others(self, functions: Iterable[str]) -> Rows:
        """Operations of XLA, in other compiled functions than these."""
        works = (self.device_work | self.events.text("category").mask("cpu_op")) & self.in_steps
        rows, modules = np.flatnonzero(works), list(map(as_module, functions))
        return rows[~np.isin(functions_of_work(self.trace, rows), modules)]

    def trained(self) -> Mask:
        """Mask of events with work in them that has a backward pass, or is one."""
        own = self.events.text("stage").mask("backward")
        origin = self.events["forward_event"]
        own[origin[origin >= 0]] = True
        return holds(self.events["parent"], own)

    def is_range(self, rows: Rows) -> Mask:
        """Mask of `rows` that are ranges around Python code, not operators."""
        ranges = self.events.text("category").mask("annotation", "python")
        ranges |= self.events.text("name").where(lambda name: name.startswith("stepscope."))
        return ranges[rows]

    def innermost_operators(self, rows: Rows) -> Rows:
        """Those of `rows` that call no other operator."""
        return np.setdiff1d(rows, self.events["parent"][self.events.text("category").mask("cpu_op")])

    def outlasted(self, copies: Rows) -> Mask:
        """Mask of `copies` that end within their calls, which wait for them; none in a tree, without order.

        An asynchronous copy of pinned memory may end as early, and its call waits for nothing.
        """
        if self.context_trace:
            return np.zeros(len(copies), np.bool_)
        calls, end, names = self.caller[copies], self.events.spans()[1], self.events.text("name")
        pinned = names.where(lambda name: "Pinned" in name)[copies]
        waits = (calls >= 0) & (end[calls] >= end[copies])
        return waits & ~(pinned & names.where(lambda name: "Async" in name)[calls])

    def operator_of(self, rows: Rows) -> Ids32:
        """The innermost operator around each event or its launch, or -1."""
        return self._operator[np.where(self.caller[rows] >= 0, self.caller[rows], rows)]

    def name(self, row: int) -> str:
        return self.events.text("name")[row] or ""

    def names(self, rows: Rows) -> list[str]:
        """The distinct names of events, sorted."""
        return sorted(self.events.text("name").take(rows).compact().values)

    def each_argument(self, rows: Rows, name: str, made: Callable[[Any], Made]) -> list[Made]:
        """What a function makes of one argument of each event, called once for equal ones."""
        sources = self.events["source"][rows]
        order = np.argsort(sources, kind="stable")
        known: dict[bytes, int] = {}
        codes = numbered_calls(
            self.trace.arguments,
            sources[order],
            np.zeros(len(rows), np.int64),
            lambda _, text: known.setdefault(_part(text, name), len(known)),
            Counted((name,), decisive=1),
        )
        values = [made(_parsed(part, name)) for part in known]
        return [values[code] for code in codes[inverse(order)].tolist()]

    def each_shapes(
        self, rows: Rows, made: Callable[[list[list[int]]], Made], name: str = "Input Dims"
    ) -> list[Made]:
        """The same for the input shapes of each operator, empty where not recorded; equal ones are shared."""
        return self.each_argument(rows, name, lambda dims: made(_shapes(dims)))

    @property
    def excludes_warm_up(self) -> bool:
        """Whether the first step is excluded as a warm-up step."""
        return int((self.recorded["steps"]["rank"] == self.rank).sum()) > len(self.steps)

    @cached_property
    def caller(self) -> Ids32:
        """What asked for each event on the CPU, or -1 (see `caller_of`)."""
        return caller_of(self.trace)

    @cached_property
    def launched(self) -> Rows:
        return np.flatnonzero(self.caller >= 0)

    @cached_property
    def module_calls(self) -> Rows:
        return self.find(_MODULES, on_device=False)

    @cached_property
    def loop_track(self) -> int:
        return main_track(self.trace, self.rank)

    @cached_property
    def device_work(self) -> Mask:
        return mask_of_device_work(self.trace)

    @cached_property
    def one_off(self) -> OneOffCosts:
        """What the rank pays once in the recording; nothing in a tree, which has no order."""
        if self.context_trace:
            return OneOffCosts(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return one_off_costs(self.recorded, self.rank)

    @cached_property
    def in_steps(self) -> Mask:
        """Events of the analyzed rank and steps."""
        return events_in_steps(self.trace, self.rank, self.steps["step"])

    @cached_property
    def _of_rank(self) -> Mask:
        """The same without work that only compares algorithms."""
        result = self.in_steps.copy()
        result[self.one_off.work] = False
        return result

    @cached_property
    def _operator(self) -> Ids32:
        operator = self.events.text("category").mask("cpu_op")
        operator &= ~self.events.text("name").where(lambda name: name.startswith("stepscope."))
        return innermost(self.events["parent"], operator)

    def _around(self, rows: Rows) -> Ids32:
        return innermost(self.events["parent"], mask_of(rows, len(self.events)))


def _busiest(trace: Trace) -> int:
    require_steps(trace)
    steps = trace["steps"]
    ranks = np.unique(steps["rank"])
    busy = [int(steps["device_busy_ns"][steps["rank"] == rank].sum()) for rank in ranks]
    return int(ranks[int(np.argmax(busy))])


def _part(text: bytes, name: str) -> bytes:
    """The JSON text of one key of an object; decoding no other is several times as fast."""
    try:
        return bytes(_PARTS.decode(text).get(name, b""))
    except (ValueError, RecursionError):
        value = parse(text).get(name)
        return json.dumps(value).encode() if value is not None else b""


def _parsed(text: bytes, name: str) -> Any:
    return parse(b'{"%b":%b}' % (name.encode(), text)).get(name) if text else None


def _shapes(dims: Any) -> list[list[int]]:
    lists = (each if isinstance(each, list) else [] for each in dims or [])
    return [shape if all(isinstance(size, int) for size in shape) else [] for shape in lists]


MOST_BETWEEN = 4  # times as many calls as usual lie between two iterations; more lie between loops
ITERATIONS = 64  # per step, so many calls or more apart: a model has fewer layers
OFTEN = 16  # calls per step: a module that is called less often is in no loop
MOST_FILLED = 2  # calls between two of a loop that belong to it: a sum for weights and bias
DISPATCH_NS = 20_000  # of Python and C++ between two operators; in a longer time something else ran
LONGEST_NS = 200_000  # 10 times as long: Python between the operators of a model, with hooks


class EagerCalls:
    """The outermost operators of the steps, in order of start, and what each costs.

    Attributes:
        rows: events.id of the calls, int64, shape (n,).
    """

    def __init__(self, search: EventSearch) -> None:
        self._search, self._events = search, search.events
        self.rows: Rows = search.outermost(search.find(category="cpu_op"))

    @cached_property
    def cost_ns(self) -> Times:
        """Time until the next call of the same thread, so with dispatch and Python, shape (n,).

        At most `DISPATCH_NS` longer than the call itself.
        """
        return self._events["duration_ns"][self.rows] + np.clip(self._gaps[0], 0, DISPATCH_NS)

    @cached_property
    def _gaps(self) -> tuple[Times, Ids]:
        """The time until the next call of the same thread, and its position if it is of the same step."""
        start, duration = (self._events[name][self.rows] for name in ("start_ns", "duration_ns"))
        track, step = (self._events[name][self.rows] for name in ("track", "step"))
        order = np.lexsort((start, track))
        gap, following = np.zeros(len(order), np.int64), np.full(len(order), -1, np.int64)
        same = np.diff(track[order]) == 0
        gap[order[:-1]] = np.where(same, start[order][1:] - (start + duration)[order][:-1], 0)
        following[order[:-1]] = np.where(same & (np.diff(step[order]) == 0), order[1:], -1)
        return np.maximum(gap, 0), following

    def _usual_gaps(self) -> Times:
        """The median of the gaps between calls of the same two names; a busy machine makes some longer."""
        gap, following = self._gaps
        names = self._events["name"][self.rows].astype(np.int64)
        pair = names * (names.max(initial=0) + 1) + names[following]
        _, place, count = np.unique(pair, return_inverse=True, return_counts=True)
        usual: Times = gap[np.lexsort((gap, place))][np.cumsum(count) - (count + 1) // 2]
        return usual[place]

    def elapsed_ms(self, calls: Mask) -> float:
        """At most what these calls cost, with the time between calls of model and backward.

        Autograd plans a backward pass before it, and frees the graph after it. Where more time usually
        lies between two calls something else runs, as an environment.
        """
        gap, following = self._gaps
        stage = self._events.text("stage")
        graph = stage.mask(*MODEL_STAGES, "loss", "backward")[self.rows]
        backward = stage.mask("backward")[self.rows]
        gap = np.where(backward | backward[following] | (self._usual_gaps() <= LONGEST_NS), gap, DISPATCH_NS)
        time = np.where(calls, self._events["duration_ns"][self.rows], 0)
        time += np.where((calls | graph) & (following >= 0), gap, 0)
        return float(time.sum()) / 1e6 / self._search.step_count

    @cached_property
    def forward(self) -> Ids:
        """For each call of the backward pass that of the forward pass, as a position; else -1."""
        forward_event = self._events["forward_event"]
        linked = np.flatnonzero(forward_event >= 0)
        call, origin = self._positions[linked], self._positions[forward_event[linked]]
        found = np.full(len(self.rows), -1, np.int64)
        known = (call >= 0) & (origin >= 0) & (call != origin)
        found[call[known]] = origin[known]
        return found

    def around(self, rows: Rows) -> Ids:
        """The positions of the calls in which these events run, ascending."""
        found = self._positions[rows]
        return distinct(found[found >= 0])

    def of_loops(self, rows: Rows) -> Mask:
        """The calls of loops whose iterations each have some of `rows`, and of their backward pass.

        A loop goes on from one of `rows` to the next of the same step and thread, if not many more
        calls lie between these than usual, or than between many of them, as where an iteration has
        two in a row; from one to the next of its module where that has many.
        """
        loops = np.zeros(len(self.rows), np.bool_)
        for each in rows_by_key(self._events["module"][rows]).values():
            if len(each) >= OFTEN * self._search.step_count:
                loops = self._with_those_near(loops, self.around(rows[each]))
        return self._filled(self.with_backward(self._with_those_near(loops, self.around(rows))))

    def _with_those_near(self, loops: Mask, position: Ids) -> Mask:
        if len(position) > 1:
            event = self.rows[position]
            between = np.diff(position)
            follows = np.diff(self._events["step"][event]) == 0
            follows &= np.diff(self._events["track"][event]) == 0
            often = np.sort(between)[: 1 - ITERATIONS * self._search.step_count].max(initial=0)
            follows &= between <= max(MOST_BETWEEN * np.median(between), often)
            loops = _with_those_between(loops, position, follows)
        loops[position] = True
        return loops

    def _filled(self, calls: Mask) -> Mask:
        """Also the few calls between two of these, as the sums of gradients in a backward pass."""
        at = np.flatnonzero(calls)
        step = self._events["step"][self.rows]
        near = (np.diff(at) <= 1 + MOST_FILLED) & (np.diff(step[at]) == 0)
        return _with_those_between(calls, at, near)

    def with_backward(self, calls: Mask) -> Mask:
        """These calls, and those of their backward pass."""
        return calls | np.append(calls, False)[self.forward]

    def ms(self, calls: Mask | Ids) -> float:
        """What these calls cost, ms per step."""
        return float(self.cost_ns[calls].sum()) / 1e6 / self._search.step_count

    @cached_property
    def _positions(self) -> Ids:
        """The position of the call around each event, or -1."""
        return inverse(self.rows, len(self._events) + 1)[self._search.enclosing(self.rows)]


def _with_those_between(calls: Mask, at: Ids, near: Mask) -> Mask:
    """Also the calls from one position of `at` to the next, where the two are near."""
    inside = np.zeros(len(calls) + 1, np.int64)
    np.add.at(inside, at[:-1][near], 1)
    np.add.at(inside, at[1:][near], -1)
    return calls | (np.cumsum(inside)[:-1] > 0)
