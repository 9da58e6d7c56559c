"""`cpu_latency`: the CPU launches work more slowly than the device runs it (4.3, 5)."""

from collections.abc import Iterator

from msgspec.structs import replace

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.python_stalls import (
    LOOP,
    PythonStalls,
    advice_if_blocked,
    at_sampled_line,
    blocked_of_loop,
    find_python_stalls,
    has_names,
    name_of_stall,
    place_of_stall,
    python_of_the_loop,
    share,
    stalled_ranges,
)
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.source_places import plain_name
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.links.launches import is_graph_launch, shows_cpu
from stepscope.facts.summary.text_tables import stage_words
from stepscope.trace.intervals import Intervals
from stepscope.trace.recorded_steps import held_up_by_lines, later_blocked_share
from stepscope.trace.schema import STAGES

CAUSE = "launches"
EXPLAINS = ("host", "launch")
_TAIL = "Keep Python out of the inner loop."
# In training, and where nothing trains: without an optimizer, and with requests for samples.
_COMPILE = "torch.compile (mode='reduce-overhead' replays CUDA graphs)"
OF_GRAPHS = (
    f"Launch fewer, larger kernels: {_COMPILE}, a larger batch, a fused optimizer. {_TAIL}",
    f"Launch fewer, larger kernels: {_COMPILE}, more samples at once. {_TAIL}",
)
OF_SERVERS = (
    "Launch fewer, larger kernels: CUDA graphs, torch.compile (mode='reduce-overhead'), more requests at "
    f"once. A server replays CUDA graphs unless it runs in eager mode. {_TAIL}"
)
_GRAPHS = r"^(cuda|hip)[A-Z]|^cu[A-Z]"  # runtimes with graphs
JAX = (
    "Launch fewer, larger programs: the whole step under one jax.jit, several steps in one call "
    f"(jax.lax.scan). Use a larger batch. {_TAIL}"
)
IDLES = {"host": "because the CPU has launched nothing", "launch": "although work is launched"}
LEAST_STATED = 0.005  # of the step: a smaller cause would be shown as 0 %
LEAST_LEFT_OUT = 0.02  # of the step, by which shown causes may exceed what counts
LEAST = 0.15  # of the step
RATIO = 2  # CPU time over device time, from which launching decides
MOSTLY = 0.5  # of an operator, or of the gaps
LEAST_PYTHON = 0.60  # of the step, on a CPU
LEAST_LONG = 0.10  # of the step, in stalls at the same places
PYTHON = (
    "Replace loops over elements by operators on whole tensors. Log and save less often or in "
    "another thread, and prepare data in the data loader's workers."
)
PYTHON_OF_JAX = (
    "Put loops over elements under jax.jit (jax.vmap, jax.lax.scan). Log and save less often or in "
    "another thread, and prepare batches in another thread or process."
)
PYTHON_OF_INFERENCE = (
    "Replace loops over elements by operators on whole tensors. Prepare inputs, schedule and "
    "log in another thread or process."
)
NAMES = "Record with `stepscope run --stack` to see the functions."
NAMES_OF_JAX = "Record with python_tracer_level=1 to see the functions."


def cpu_latency(context: RuleContext) -> Iterator[Finding]:
    """A device that idles because the CPU launches work too slowly.

    On a CPU: time in which the training loop runs Python and no operator. In a tree of contexts:
    operators whose CPU time is twice the time of the work that they launch.

    Silent if the device idles this way for less than 15 % of the step. On a CPU if Python takes
    less than 60 % of the step, stalls that recur at the same place for 1 ms or more of each step
    take less than 10 %, and other threads hold up the loop for less than 20 %; what an optimizer of
    PyTorch does between its operators, mostly to free memory, is no Python of the loop. Gaps of 50 ms
    or more, gaps of 100 µs or more after a launch (these wait for another stream), and runtime calls
    of 1 ms or more (these allocate or load kernels) do not count.

    Source: DEEPCONTEXT section 4.3, "CPU Latency Analysis".
    """
    if not context.measures.has_device:
        yield from _python(context) if shows_cpu(context.trace) else ()
    elif context.context_trace:
        yield from _frames(context)
    else:
        yield from _launching(context)


def _frames(context: RuleContext) -> Iterator[Finding]:
    calls = context.search.outermost(context.search.find(category="cpu_op"))
    cpu, device = (context.measures.ms(calls), context.measures.ms(context.search.find(on_device=True)))
    slower = context.events["duration_ns"][calls] > RATIO * context.measures.caused_ns(calls)
    if cpu <= RATIO * device or not slower.any():
        return
    row = int(calls[slower][context.events["duration_ns"][calls[slower]].argmax()])
    mostly = context.events["duration_ns"][row] >= MOSTLY * context.events["duration_ns"][calls].sum()
    yield context.finding(
        f"Launching takes {rounded(cpu)} ms per step for {rounded(device)} ms of device work. "
        f"{'Mostly' if mostly else 'Most'} in {plain_name(context.search.name(row))}{context.place(row)}.",
        _advice(context, graphs=True),
        calls[slower],
        context.gains.bound(cpu - device, "at most the CPU time in excess of the device time"),
    )


def _launching(context: RuleContext) -> Iterator[Finding]:
    gaps = context.measures.launch_gaps().minus(context.measures.stalls())
    idle = context.measures.recurring_ms(gaps)
    rows = _during(context, gaps)
    if idle < LEAST * context.measures.steady_ms or not len(rows):
        return
    graphs = len(context.search.find(_GRAPHS, category="runtime")) > 0
    yield context.finding(
        f"The CPU launches work too slowly{_stage(context, gaps)}. {_waits(context, idle)}.",
        _advice(context, graphs),
        rows,
        _gain(context, idle, graphs),
    )


def _stage(context: RuleContext, gaps: Intervals) -> str:
    """The stage with most of the gaps; empty if none has half of them."""
    spent = {stage: context.measures.stage_spans(stage).intersect(gaps).total() for stage in STAGES}
    worst = max(spent, key=spent.__getitem__)
    return f", mostly in {stage_words(worst)}" if spent[worst] >= MOSTLY * gaps.total() else ""


def _advice(context: RuleContext, graphs: bool) -> str:
    compiled = _COMPILE if graphs else "torch.compile"
    names = context.trace.events.text("name")
    if names.where(lambda name: is_graph_launch(name) or "StreamEndCapture" in name).any():
        compiled = "more of the step in its CUDA graphs"
    training, inference = (text.replace(_COMPILE, compiled) for text in OF_GRAPHS)
    if compiled == _COMPILE and context.serves:
        inference = OF_SERVERS
    return context.by_framework(training, jax=JAX, inference=inference)


def _waits(context: RuleContext, idle_ms: float) -> str:
    """How long the device idles by cause, as the verdict states it, and how much of it counts."""
    shares = {why: context.measures.idle_share(cause) for cause, why in IDLES.items()}
    waits = [f"for {share:.0%} of the step {why}" for why, share in shares.items() if share >= LEAST_STATED]
    counted = idle_ms / context.measures.steady_ms
    rest = sum(shares.values()) > counted + LEAST_LEFT_OUT
    short = f"; {counted:.0%} of the step is in short gaps" if rest else ""
    return f"The device is idle {' and '.join(waits)}{short}"


def _gain(context: RuleContext, idle_ms: float, has_graphs: bool) -> Gain:
    replayed = context.gains.whatif("cuda_graphs")
    if replayed is None:
        return context.gains.bound(idle_ms, "at most this idle time")
    if not has_graphs:
        replayed = replace(replayed, note="if it were launched as fast as by a graph", range_ms=None)
    return replayed.at_most(idle_ms)


def _during(context: RuleContext, gaps: Intervals) -> Rows:
    """Operators and calls that are in the gaps for most of their time; if none is, for some."""
    rows = context.search.find(category=("cpu_op", "runtime"), on_device=False)
    rows = context.search.outermost(rows[~context.search.is_range(rows)])
    inside = gaps.within(*context.events.spans(rows))
    mostly = inside > MOSTLY * context.events["duration_ns"][rows]
    return rows[mostly if mostly.any() else inside > 0]


def _python(context: RuleContext) -> Iterator[Finding]:
    """Time in which no thread runs an operator, by the range or frame of the training loop."""
    gaps = python_of_the_loop(context)
    found = find_python_stalls(context, gaps) if context.has_training_steps else None
    if share(context, gaps) < LEAST_PYTHON:
        gaps = found.spans if found and share(context, found.spans) >= LEAST_LONG else Intervals([], [])
    measures, capture = context.measures, context.trace.metadata.capture
    if held_up := held_up_by_lines(capture):
        away = measures.wait_ms() / (measures.step_ms or 1)
        away += share(context, measures.stage_spans("data_loading"))
        held_up = held_up if held_up > max(share(context, gaps), away) else 0.0
    gaps_at = measures.python_time() if held_up else gaps
    if not len(gaps_at) or not len((stalled := stalled_ranges(context, gaps_at)).rows):
        return
    part = held_up or share(context, gaps)
    name = name_of_stall(context, stalled)
    mostly = f" {place_of_stall(context, stalled, name)}." if name != LOOP else ""
    blocked = held_up or blocked_of_loop(context, part)
    does = "is blocked" if blocked else "runs only Python"
    plain = context.by_framework(PYTHON, jax=PYTHON_OF_JAX, inference=PYTHON_OF_INFERENCE)
    advice = advice_if_blocked(context, blocked) if blocked else plain
    stall = context.finding(
        f"The {context.loop} {does} for {'about ' * bool(blocked)}{blocked or part:.0%} of the step."
        f"{mostly}{_between(context, found)}",
        advice if has_names(context, name) else f"{advice} {context.by_framework(NAMES, jax=NAMES_OF_JAX)}",
        stalled.rows,
        context.gains.bound(
            part * context.measures.steady_ms,
            f"at most the time {'that it is blocked' if held_up else 'between operators'}",
            besides=later_blocked_share(capture) / part if blocked else 0.0,
            sure=MOSTLY_SAVED if part >= LEAST_PYTHON and not blocked else 0.0,
        ),
        recurs=False,  # the share is a median over the steps
    )
    yield at_sampled_line(context, stall, stalled)


def _between(context: RuleContext, found: PythonStalls | None) -> str:
    """The length of the longest stall and the events around it; empty if there is none."""
    if found is None:
        return ""
    begin = context.trace.metadata.capture.get("step_ends_after") or "the start of the step"
    before = plain_name(context.search.name(found.before)) if found.before >= 0 else begin
    after = plain_name(context.search.name(found.after)) if found.after >= 0 else "its end"
    return f" Longest: {rounded(found.longest_ms)} ms without interruption between {before} and {after}."
