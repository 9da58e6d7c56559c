"""Costs that a process pays once: setup, loading, first launches, benchmarks, compilation, teardown.

Nothing in a recording says so of a call. A call of the driver or runtime counts by its name, or if
it takes far longer than such a call usually does; and never if later steps pay it again.
"""

import re
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from stepscope.base.arrays import Floats, IntArray, Mask, Rows
from stepscope.facts.annotate.links.launches import at_launch, device_work, launch_of, of_rank, on_host
from stepscope.facts.annotate.range_names import operators
from stepscope.facts.annotate.steps.step_table import events_in_steps, steady_steps
from stepscope.trace.intervals import Intervals
from stepscope.trace.nesting import innermost, is_inside, outermost
from stepscope.trace.row_order import ends_run, place_in_group, places_among
from stepscope.trace.sets import distinct, mask_of
from stepscope.trace.trace import Trace

COMPILING = re.compile(
    r"dynamo_timed|compile_inner|^_compile|CompilationMetrics|compile_fx|entire_frame_compile"
    r"|^backend_compile(_and_load)?$"  # of JAX
)
LONG_NS = 1_000_000  # a call that sets nothing up takes microseconds: launching some 10 us
_LONG_ALLOCATION_NS = 50_000_000  # of memory: without setup 1 to 20 ms on V100, A100 and 2080 Ti
_SEVERAL = 2  # steps, in which a cost may recur
_MOSTLY, _NEARLY_ALL = 0.51, 0.75  # of the steps; the latter for calls that by their name come once
_MIN_STEPS = 3  # with fewer nothing shows which step is typical
_RARE = 0.1  # of what the step with the most of it takes, or of the launches of a kernel

_DRIVER = r"^(cu|cuda|hip|mu|musa)(?=[A-Z])"
# Contexts, modules, streams, handles and graphs are created and destroyed once.
_ONCE = re.compile(
    rf"{_DRIVER}(Init$|Ctx(Create|Destroy|Detach)|DevicePrimaryCtx|DeviceReset|Stream(Create|Destroy)"
    r"|Module(Load|Unload|GetFunction|GetGlobal|EnumerateFunctions)"
    r"|Library(Load|Unload|GetKernel|GetModule|GetGlobal)|Link(Create|Add|Complete|Destroy)"
    r"|FuncGetAttributes|FuncSetAttribute|KernelGetFunction|MemPool(Create|Destroy)"
    r"|Graph(Instantiate|ExecDestroy))|^(nvrtc|hiprtc|nvJitLink)[A-Z]|^ncclComm(Init|Destroy|Finalize)"
    r"|^(ze|ur)(Context|Module|Program|Kernel|Queue|CommandQueue)(Create|Build|Compile|Link|Destroy)"
    r"|^(cublas|cublasLt|cudnn|cusolver\w*|cusparse|cufft|curand|rocblas|hipblas(Lt)?|miopen)"
    r"(Create|Destroy|_create|_destroy)(_?[Hh]andle)?(_v2)?$"
)
_SETS_UP = re.compile(_DRIVER)
# Long calls of these wait for work, or start it.
_WORKS = re.compile(r"Launch|Memcpy|Memset|Synchronize|Wait|EventRecord|Query|Capture|Host(Func|Fn)")
_ALLOCATES = re.compile(r"Malloc|Free|Host(Alloc|Register|Unregister)|Mem(Alloc|Create|Map|Unmap|Release)")
_LAUNCH = re.compile(rf"{_DRIVER}(Ext)?(Module)?Launch\w*Kernel")
_CAPTURE = ("Begin", "End")
_TIMES = re.compile(r"(Event|Stream|Device)Synchronize|EventElapsedTime")
# CUPTI's notes of what a call spends on recording, or on loading and compiling its kernel.
_OVERHEAD = re.compile(r"^(Activity Buffer Request|Instrumentation|Resource|Driver Compiler|[\w ]+ Loading)$")
_CONVOLUTION = re.compile(r"(?i)conv")
_REGION = re.compile(r"^Torch-Compiled Region: \d+/(\d+)")  # how often its function was compiled before


class OneOffCosts(NamedTuple):
    """Events of one rank that later steps do not pay again; events.id, ascending."""

    calls: Rows  # on the CPU, none inside another
    work: Rows  # work of the device that only compares algorithms


_kept: WeakKeyDictionary[Trace, dict[int, OneOffCosts]] = WeakKeyDictionary()  # each step's report asks


def one_off_costs(trace: Trace, rank: int) -> OneOffCosts:
    """What a rank pays once in a recording."""
    kept = _kept.setdefault(trace, {})
    return kept.get(rank) or kept.setdefault(rank, _found(trace, rank))


def _found(trace: Trace, rank: int) -> OneOffCosts:
    here = of_rank(trace, rank)
    host, work = here & on_host(trace), np.flatnonzero(here & device_work(trace))
    benchmarks = _benchmarks(trace, rank, host)
    by_name, launches = _calls_by_name(trace, rank, host, work), _slow_launches(trace, work)
    loads = _first_calls(trace, host, np.union1d(by_name, launches))
    captures = _captures(trace, rank, host)
    found = np.concatenate([by_name, launches, loads, captures, _compilations(trace, rank, host), benchmarks])
    calls = np.flatnonzero(outermost(trace.events["parent"], mask_of(found, len(trace.events))))
    return OneOffCosts(calls, _work_of(trace, benchmarks))


def inside(trace: Trace, costs: OneOffCosts) -> Mask:
    """All events that are part of one-off costs, on the CPU and on the device, shape (events,)."""
    result = is_inside(trace.events["parent"], mask_of(costs.calls, len(trace.events)))
    result[costs.work] = True
    return result


def _calls_by_name(trace: Trace, rank: int, host: Mask, work: Rows) -> Rows:
    """Calls that set something up or tear it down, by name and length, or hold overhead that is noted."""
    named = {pattern: _named(trace, pattern) & host for pattern in (_ONCE, _SETS_UP, _WORKS, _ALLOCATES)}
    length = trace.events["duration_ns"]
    calls = named[_SETS_UP] & ~named[_WORKS]
    long = calls & (length >= LONG_NS)
    allocates = np.flatnonzero(long & named[_ALLOCATES])
    once = (long & ~named[_ALLOCATES]) | named[_ONCE]
    once[allocates[(length[allocates] >= _LONG_ALLOCATION_NS) | _at_an_edge(trace, allocates, work)]] = True
    rows, spent = np.flatnonzero(once), _per_step(trace, rank, np.flatnonzero(calls | named[_ONCE]))
    code, paying = trace.events["name"], _share_paying(spent)
    rows = rows[paying[code[rows]] < np.where(named[_ONCE][rows], _NEARLY_ALL, _MOSTLY)]
    noted = _named(trace, _OVERHEAD) & trace.events.text("category").mask("other")  # on no thread
    slow = np.flatnonzero(named[_SETS_UP] & (length >= LONG_NS))
    overhead = Intervals(*trace.events.spans(noted)).within(*trace.events.spans(slow))
    rows = np.append(rows, slow[overhead > _MOSTLY * length[slow]])
    return np.union1d(rows, allocates[_in_one_step(spent)[code[allocates]]])


def _named(trace: Trace, pattern: re.Pattern[str]) -> Mask:
    return trace.events.text("name").where(lambda name: pattern.search(name) is not None)


def _at_an_edge(trace: Trace, rows: Rows, work: Rows) -> Mask:
    """Which calls come before the first launch, or after the last work has ended."""
    if not len(work):
        return np.zeros(len(rows), np.bool_)
    start = trace.events["start_ns"]
    first = at_launch(trace, start)[work].min()
    return (start[rows] < first) | (start[rows] >= trace.events.spans(work)[1].max())


class _Spent(NamedTuple):
    """The time of the events of each name in each step that has any, ns, shape (cells,).

    By name, then ascending. Only these cells: a file may have as many names and steps as events.
    """

    name: Rows
    spent: Floats
    names: int
    steps: int


def _per_step(trace: Trace, rank: int, rows: Rows) -> _Spent:
    events, numbers = trace.events, _numbers(trace, rank)
    place, names = places_among(numbers, events["step"][rows]), len(events.text("name").values)
    rows, place = rows[place >= 0], place[place >= 0]
    cells, cell = np.unique(events["name"][rows].astype(np.int64) * len(numbers) + place, return_inverse=True)
    spent = np.bincount(cell, events["duration_ns"][rows], len(cells)).astype(np.float64)
    name = cells // max(len(numbers), 1)
    order = np.lexsort((spent, name))
    return _Spent(name[order], spent[order], names, len(numbers))


def _numbers(trace: Trace, rank: int, steady: bool = False) -> IntArray:
    steps = trace["steps"]
    return steps["step"][(steps["rank"] == rank) & (steady_steps(steps) if steady else True)]


def _share_paying(each: _Spent) -> Floats:
    """The share of several steps in which each name takes about as long, shape (names,)."""
    if each.steps < _SEVERAL:
        return np.zeros(each.names)
    most = np.zeros(each.names)
    most[each.name] = each.spent  # the last of each name is its largest
    paying = each.spent > _RARE * most[each.name]
    return np.bincount(each.name[paying], minlength=each.names) / each.steps


def _in_one_step(each: _Spent) -> Mask:
    """Names that take long in one of several steps, and next to nothing in the others."""
    result = np.zeros(each.names, np.bool_)
    if each.steps < _MIN_STEPS or not len(each.name):
        return result
    largest = np.flatnonzero(np.append(np.diff(each.name) > 0, True))
    alone = np.diff(largest, prepend=-1) == 1
    second = np.where(alone, 0, each.spent[largest - 1])
    most = each.spent[largest]
    result[each.name[largest]] = (most > 0) & (second <= _RARE * most)
    return result


def _slow_launches(trace: Trace, work: Rows) -> Rows:
    """Launches that load their kernel: slow, and the first of their kernel, of which others are not."""
    events = trace.events
    caller = launch_of(trace)[work].astype(np.int64)
    work, caller = work[caller >= 0], caller[caller >= 0]
    slow = _named(trace, _LAUNCH) & (events["duration_ns"] >= LONG_NS)
    if not slow[caller].any():
        return caller[:0]
    order = np.argsort(events["start_ns"][caller], kind="stable")
    caller = caller[order]
    _, first, kernel = np.unique(events["name"][work[order]], return_index=True, return_inverse=True)
    others, slow_others = np.bincount(kernel) - 1, np.bincount(kernel, slow[caller]) - 1
    return np.unique(caller[first[slow[caller[first]] & (slow_others <= _RARE * others)]])


def _captures(trace: Trace, rank: int, host: Mask) -> Rows:
    """What threads run while they capture a graph: its launches only record; none if steps repeat it."""
    events, (start, end) = trace.events, trace.events.spans()
    begins, ends = (np.flatnonzero(_named(trace, re.compile(f"{word}Capture$")) & host) for word in _CAPTURE)
    if not len(ends) or _share_paying(_per_step(trace, rank, begins)).max() >= _NEARLY_ALL:
        return begins[:0]
    last = ends[np.minimum(np.searchsorted(start[ends], start[begins]), len(ends) - 1)]
    spans = Intervals(start[begins], np.maximum(end[last], start[begins]))
    here = host & np.isin(events["track"], events["track"][begins])
    return np.flatnonzero(here & spans.cover(start) & spans.cover(end - 1))


def _first_calls(trace: Trace, host: Mask, costs: Rows) -> Rows:
    """Operators that pay these costs, and load what they need besides: long without the costs, the
    first of their name, of which no other takes long."""
    events = trace.events
    costs = costs[events["parent"][costs] >= 0]
    paid = np.bincount(events["parent"][costs], events["duration_ns"][costs], len(events))
    rows = np.flatnonzero(host & operators(events))
    rows = rows[np.argsort(events["start_ns"][rows], kind="stable")]
    own = events["duration_ns"][rows] - paid[rows]
    _, first, name, count = np.unique(events["name"][rows], True, True, True)
    longest = np.zeros(len(first))
    np.maximum.at(longest, np.delete(name, first), np.delete(own, first))
    loads = (count > 1) & (own[first] >= LONG_NS) & (longest <= _RARE * own[first])
    return rows[first[loads & (paid[rows[first]] > 0)]]


def _benchmarks(trace: Trace, rank: int, host: Mask) -> Rows:
    """Convolutions that wait for the device: they time algorithms (torch.backends.cudnn.benchmark).

    Where shapes vary, every step does, and they recur.
    """
    events = trace.events
    waits = np.flatnonzero(host & events.text("category").mask("runtime") & _named(trace, _TIMES))
    around = innermost(events["parent"], host & operators(events))[waits]
    waiting: Rows = distinct(around[around >= 0]).astype(np.int64)
    found = waiting[_named(trace, _CONVOLUTION)[waiting]]
    paying = _share_paying(_per_step(trace, rank, found))
    return found[paying[events["name"][found]] < _NEARLY_ALL]


def _work_of(trace: Trace, calls: Rows) -> Rows:
    """The device work that operators launch, ascending."""
    part = inside(trace, OneOffCosts(calls, calls[:0]))
    launches = trace["launches"]
    return np.sort(launches["device_event"][part[launches["cpu_event"]]]).astype(np.int64)


def compilations(trace: Trace, rank: int) -> Mask:
    """The events of a rank that compile functions, shape (events,)."""
    calls = trace.events.text("category").mask("annotation", "cpu_op")
    return of_rank(trace, rank) & calls & _named(trace, COMPILING)


def _compilations(trace: Trace, rank: int, host: Mask) -> Rows:
    """Compilation in at most one of three steps or more, besides one that warms up.

    Of fewer, if compiled regions run and all are the first of their function. None where the whole
    run compiles one function again and again.
    """
    events, numbers = trace.events, _numbers(trace, rank, steady=True)
    rows = np.flatnonzero(host & compilations(trace, rank))
    place = places_among(numbers, events["step"][rows])
    recur = len(distinct(place[place >= 0])) > 1 or trace.metadata.capture.get("compiles_again", False)
    regions = {found[1] for name in events.text("name").compact().values if (found := _REGION.match(name))}
    known = len(_numbers(trace, rank)) >= _MIN_STEPS or regions == {"0"}
    return rows if known and not recur else np.zeros(0, np.int64)


# -- delays by a busy machine


def one_off_delays(trace: Trace, rank: int) -> Rows:
    """CPU operators that took 1 ms or more, and next to nothing at the same place in other steps.

    The place of an operator is its number among the operators of its name in the step. Loading of
    data, whose time varies, does not count. What takes long in two steps or more at the same place
    is no delay. Ids of events, shape (n,); none for fewer than three steps.
    """
    events = trace.events
    steps = trace["steps"]["step"][trace["steps"]["rank"] == rank]
    here = events_in_steps(trace, rank, steps)
    here &= events.text("category").mask("cpu_op") & ~events.text("stage").mask("data_loading")
    rows = np.flatnonzero(here)
    if len(steps) < _MIN_STEPS or not (events["self_ns"][rows] >= LONG_NS).any():
        return np.zeros(0, np.intp)
    names = len(events.text("name").values)
    place = place_in_group(events["step"][rows].astype(np.int64) * names + events["name"][rows])
    order = np.lexsort((events["self_ns"][rows], place, events["name"][rows]))
    rows = rows[order]
    last = ends_run(events["name"][rows]) | ends_run(place[order])
    # The longest at its place is last; the one before it is of another step, or there is none.
    own = events["self_ns"][rows]
    second = np.where(np.append(False, last[:-1]), 0, np.append(0, own[:-1]))
    found: Rows = rows[last & (own >= LONG_NS) & (second <= _RARE * own)]
    return np.sort(found)
