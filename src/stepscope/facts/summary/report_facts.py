"""The facts of a report: one rank, means over its steps.

A capture marks evaluation, checkpoints and other blocks with ranges. Of the rest of `other`, and of
data loading in the main process, it samples the line that the training loop executes. The function
of the loop itself has a place for each line; any other has one, with its most frequent line.
"""

import math
import re
from collections import Counter, defaultdict
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from stepscope.base.arrays import Floats, Rows, Times
from stepscope.base.numbers import percent
from stepscope.base.typed_data import convert
from stepscope.facts.annotate.device.idle import (
    busiest_device,
    busy_times,
    copy_times,
    exposed_communication,
    launch_latency,
    python_time,
    time_blocked,
    turns,
    working_devices,
)
from stepscope.facts.annotate.device.one_off_costs import compilations, one_off_costs
from stepscope.facts.annotate.links.launches import device_work, on_host, shows_cpu
from stepscope.facts.annotate.steps.missing_work import work_is_missing
from stepscope.facts.annotate.steps.step_table import (
    longest_alone,
    mean_device_ms,
    messages,
    one_of_steps,
    ranks_with_steps,
    step_lengths,
)
from stepscope.facts.summary.facts import (
    Device,
    Iterations,
    ModuleNode,
    Stage,
    StagePlace,
    StepTimes,
    Summary,
    Verdict,
    WarmUp,
    Warning,
)
from stepscope.facts.summary.kernels import (
    WorkBounds,
    efficiency_of,
    hardware_counters,
    kernels_of,
    time_by_kind,
    work_of_modules,
)
from stepscope.facts.summary.module_costs import models_that_run, module_tree, updates_of
from stepscope.facts.summary.run_shares import run_shares
from stepscope.facts.summary.selected_steps import MS, SelectedSteps
from stepscope.facts.summary.verdict import (
    NO_CPU,
    NO_NAMES,
    NOTABLE,
    TWO_CLOCKS,
    under_load,
    verdict,
    without_all_work,
)
from stepscope.read.recorded.members_json import CALLED, CATEGORY, IN_LOOP, NOT_SAMPLED
from stepscope.trace.concat import one_rank
from stepscope.trace.intervals import Intervals
from stepscope.trace.missing_records import CLOCK_APART, MERGED_RANKS
from stepscope.trace.nesting import innermost
from stepscope.trace.recorded_steps import (
    active_share,
    core_share,
    held_up_by_lines,
    later_blocked_share,
    later_loading,
    usual_of_places,
)
from stepscope.trace.schema import IDLE_CAUSES, INFERENCE_STAGES, OUTSIDE_STAGES, STAGES
from stepscope.trace.sets import distinct
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace, allocated_peaks

_COUNTS = ("prefill_requests", "prefill_tokens", "decode_requests", "decode_tokens")
_RARE = ("evaluation", "checkpointing")  # parts of some steps


def devices_of(selected: SelectedSteps, windows: Intervals) -> list[Device]:
    """The devices that work in the windows of the steps, or in parts of these."""
    active = working_devices(selected.trace, selected.rank, windows)
    idle = selected.rows_of(selected.trace["idle"])
    compared = one_off_costs(selected.trace, selected.rank).work if active else selected.work[:0]
    return [_device(selected, windows, idle, compared, device) for device in active]


def _device(selected: SelectedSteps, windows: Intervals, idle: Table, compared: Rows, device: int) -> Device:
    def inside_ms(time: Intervals) -> float:
        return time.intersect(windows).total() * MS / selected.count

    here = idle["device"] == device
    length = windows.within(*idle.spans()) * MS / selected.count
    spent = np.bincount(idle["cause"][here], length[here], len(IDLE_CAUSES)).tolist()
    causes = {cause: ms for cause, ms in zip(IDLE_CAUSES, spent, strict=True) if ms or cause != "unknown"}
    window = float(windows.total() * MS / selected.count)
    events, tracks = selected.trace.events, selected.trace["tracks"]
    here = ((tracks["device"] == device) & (tracks["rank"] == selected.rank))[events["track"]]
    communication = inside_ms(Intervals(*events.spans(here & events.text("category").mask("communication"))))
    comparing = inside_ms(Intervals(*events.spans(compared[here[compared]])))
    work = np.flatnonzero(here & device_work(selected.trace))
    return Device(
        device=device,
        name=str(selected.trace.metadata.device(device).get("name", "")),
        window_ms=window,
        computing_ms=window - sum(causes.values()),
        copying_ms=inside_ms(copy_times(selected.trace, work)),
        idle_ms=causes,
        communication_ms=communication,
        overlapped_ms=max(0.0, communication - inside_ms(busy_times(selected.trace, work)[1])),
        one_off_ms=causes.get("one_off", 0.0) + comparing,
    )


def iterations_of(selected: SelectedSteps) -> list[Iterations]:
    """The iterations that begin in the selected steps, by kind."""
    table = selected.trace["iterations"]
    begin: Times = table["start_ns"]
    begins_inside = Intervals(*selected.steps.spans()).cover(begin)
    table = table.take(begins_inside & (table["rank"] == selected.rank))
    kinds = ((stage, table.take(table["stage"] == code)) for code, stage in enumerate(INFERENCE_STAGES))
    return [_of_kind(stage, rows) for stage, rows in kinds if len(rows)]


def _of_kind(stage: str, rows: Table) -> Iterations:
    means = {name: float(rows[name].mean()) if (rows[name] >= 0).all() else None for name in _COUNTS}
    return Iterations(stage, len(rows), float((rows["end_ns"] - rows["start_ns"]).mean()) / 1e6, **means)


def summarize(trace: Trace, rank: int | None = None, step: int | None = None) -> Summary:
    """Summarize one rank of an annotated trace, in milliseconds per step.

    Args:
        rank: which rank; by default the first that has steps.
        step: number of one step; by default the mean over all steps but a warm-up step.

    Raises:
        TraceError: if there is no such rank or step.
    """
    selected = SelectedSteps(trace, ranks_with_steps(trace)[0] if rank is None else rank, step)
    devices, stages = devices_of(selected, Intervals(*selected.windows)), _stages(selected)
    steps = _step_times(selected)
    kinds = time_by_kind(selected)
    bounds = WorkBounds(selected, devices)
    work = work_of_modules(selected, bounds)
    modules = module_tree(trace, selected.rank, selected.chosen_events, selected.count, work)
    names = trace.metadata.framework, trace.metadata.framework_version
    return Summary(
        source=trace.metadata.source,
        framework=" ".join(filter(None, names)),
        rank=selected.rank,
        world_size=trace.metadata.world_size,
        steps=steps,
        verdict=_verdict(selected, steps, stages, devices),
        core_share=core_share(selected.capture),
        run=run_shares(selected.capture),
        iterations=iterations_of(selected),
        places=places_of(selected),
        not_sampled=str(trace.metadata.properties.get(NOT_SAMPLED, "")),
        updates=updates_of(selected),
        stages=stages,
        devices=devices,
        efficiency=efficiency_of(selected, bounds, devices),
        kinds=kinds,
        kernels=kernels_of(selected, bounds),
        kernels_are="kernels" if devices else "operators",
        modules=modules,
        at_once=_at_once(selected, modules),
        counters=[*hardware_counters(selected)],
        modules_evidence=next(iter(trace["modules"].text("evidence")), None) or "",
        data_wait_ms=sum((stage.cpu_ms for stage in stages if stage.stage == "data_loading"), 0.0),
        parameters=_of_roots(selected, "parameters"),
        parameter_bytes=_of_roots(selected, "parameter_bytes"),
        peak_memory_bytes=allocated_peaks(trace["memory"], selected.rank),
        capture=dict(selected.capture),
        recording_cost=dict(trace.metadata.recording_cost),
        warnings=warnings_of(trace, selected.rank),
    )


def warnings_of(trace: Trace, rank: int) -> list[Warning]:
    """The warnings about a rank."""
    rows = trace["warnings"].rows()
    return convert([row for row in rows if row["rank"] == rank], list[Warning])


def _verdict(
    selected: SelectedSteps, steps: StepTimes, stages: list[Stage], devices: list[Device]
) -> Verdict:
    python, communication = ({}, 0.0) if devices else _without_device(selected)
    capture = selected.capture
    active, blocked = active_share(capture), later_blocked_share(capture)
    later = later_loading(capture)
    data = later.share if later else 0.0
    kept, note = 1.0, ""
    rest = Intervals(*selected.windows).minus(_rare_parts(selected))
    if 0 < rest.total() <= (1 - NOTABLE) * selected.length_ns:
        kept, note = rest.total() / selected.length_ns, _left_out(selected, stages, rest)
        devices = devices_of(selected, rest)
        stages = [replace(one, share=one.share / kept) for one in stages if one.stage not in _RARE]
        python = {stage: share / kept for stage, share in python.items() if stage not in _RARE}
        active = max(active - (1 - kept), 0.0) / kept
    shares = python, communication / kept, active, data, blocked, min(held_up_by_lines(capture), 1 - active)
    all_wait = len(devices) > 1 and all(any(device.idle_ms.values()) for device in devices)
    idle = selected.rows_of(selected.trace["idle"])
    waits = turns(idle, selected.length_ns) * MS / selected.count if all_wait else 0.0
    latency = launch_latency(idle, busiest_device(selected.trace, selected.rank)) * MS / selected.count
    why = _why_unknown(selected.trace)
    found = verdict(steps.mean_ms, stages, devices, *shares, why, waits, _compiling(selected), latency)
    if not note and (alone := longest_alone(selected.steps)):
        note = f" {alone.capitalize()}."
    found = replace(found, sentence=found.sentence + note)
    missing = work_is_missing(selected.trace, selected.rank)
    elsewhere = bool(messages(selected.trace, selected.rank, MERGED_RANKS, CLOCK_APART))
    return without_all_work(under_load(found, core_share(capture)), missing, elsewhere)


def _rare_parts(selected: SelectedSteps) -> Intervals:
    """Evaluations and checkpoints with their work, if most steps have none and show what training takes."""
    runs = selected.rows_of(selected.trace["stages"])
    rows = runs.text("stage").mask(*_RARE)
    rows &= 2 * len(distinct(runs["step"][rows])) <= selected.count
    return Intervals(runs["start_ns"][rows], np.maximum(runs["end_ns"], runs["device_end_ns"])[rows])


def _left_out(selected: SelectedSteps, stages: list[Stage], rest: Intervals) -> str:
    names = [one.stage for one in stages if one.stage in _RARE]
    share = f"{1 - rest.total() / selected.length_ns:.0%} of the recorded steps"
    if run := run_shares(selected.capture):
        share += f", {percent(sum(run.shares.get(name, 0.0) for name in names))} of the run"
    return f" This leaves out {' and '.join(names)}: {share}."


def _compiling(selected: SelectedSteps) -> float:
    """The share of the steps in which functions are compiled that later steps compile again."""
    trace = selected.trace
    once = one_off_costs(trace, selected.rank).calls
    rows = np.setdiff1d(np.flatnonzero(compilations(trace, selected.rank)), once)
    steps = Intervals(*selected.steps.spans())
    return Intervals(*trace.events.spans(rows)).intersect(steps).total() / (selected.length_ns or 1)


def _why_unknown(trace: Trace) -> str:
    """Why a trace does not show the causes of idle time, if it does not."""
    if shows_cpu(trace):
        return TWO_CLOCKS
    unnamed = on_host(trace) & trace.events.text("category").mask("other")
    return NO_NAMES if unnamed.any() else NO_CPU


def _step_times(selected: SelectedSteps) -> StepTimes:
    length = _lengths(selected.steps)
    busy_ms, idle_ms = mean_device_ms(selected.steps)
    left_out = zip(selected.warm_up["step"].tolist(), _lengths(selected.warm_up).tolist(), strict=True)
    evidence = selected.steps.text("evidence")[0] or ""
    return StepTimes(
        numbers=selected.steps["step"].tolist(),
        evidence=evidence,
        mean_ms=float(length.mean()),
        median_ms=float(np.median(length)),
        min_ms=float(length.min()),
        max_ms=float(length.max()),
        std_ms=float(length.std()),
        warm_up=next((WarmUp(*step) for step in left_out), None),
        device_busy_ms=busy_ms,
        device_idle_ms=idle_ms,
        warm_up_steps=len(selected.warm_up),
        unknown_spread="" if len(length) > 1 or evidence == "whole_trace" else _unknown_spread(selected),
        **_inner_steps(selected),
    )


def _unknown_spread(selected: SelectedSteps) -> str:
    """What one step does not show: how much steps vary, or what limits the others."""
    if alone := one_of_steps(selected.trace, selected.rank, int(selected.steps["step"][0])):
        return f"{alone}; others may have another bottleneck"
    return "only one step: how much steps vary is not known"


def _at_once(selected: SelectedSteps, modules: list[ModuleNode]) -> float:
    """How many devices, or threads of XLA, work at once; so many that modules take no more than the step."""
    rows, events = selected.work, selected.trace.events
    spent = sum((node.device_ms if selected.works_on_device else node.cpu_ms) for node in modules)
    least = max(spent / (selected.length_ns * MS / selected.count or 1.0), 1.0)
    track = events["track"][rows]
    lanes = selected.trace["tracks"]["device"][track] if selected.works_on_device else track
    is_summed = selected.works_on_device or selected.trace.metadata.is_of_xla
    if not is_summed or len(distinct(lanes)) < 2:
        return least
    busy = Intervals(*events.spans(rows)).total()
    return max(float(selected.work_ns.sum()) / max(busy, 1), least)


def _inner_steps(selected: SelectedSteps) -> dict[str, int]:
    """How often the program that trains most in a step does so in one call."""
    loops = selected.trace.metadata.properties.get("program_loops", {}).values()
    most: dict[str, int] = max(loops, key=lambda one: (one["steps"] == 0, one["steps"]), default={})
    return {"inner": most.get("steps", 1), "inner_batches": most.get("micro_batches", 1)}


def _lengths(steps: Table) -> Floats:
    return (step_lengths(steps) * MS).astype(np.float64)


def _stages(selected: SelectedSteps) -> list[Stage]:
    """The stages that occur, in the order of the list of stages; none if no CPU work shows any."""
    runs = _without_earlier_work(selected, selected.rows_of(selected.trace["stages"]))
    codes = [code for code in range(len(STAGES)) if (runs["stage"] == code).any()]
    if codes == [STAGES.index("other")] and not shows_cpu(selected.trace):
        return []
    return [_stage(selected, runs.take(runs["stage"] == code), STAGES[code]) for code in codes]


def _without_earlier_work(selected: SelectedSteps, runs: Table) -> Table:
    """The runs without the CPU's waits for work from before the first step, of which that is no part."""
    steps = selected.steps
    excess = int((steps["end_ns"] - steps["start_ns"]).sum()) - selected.length_ns
    if not selected.works_on_device or excess <= 0:
        return runs
    trace = one_rank(selected.trace, selected.rank)
    begin, until = int(steps["start_ns"][0]), int(steps["window_start_ns"][0])
    waits = time_blocked(trace, np.flatnonzero(device_work(trace))).clip(begin, max(begin, until))
    waited = np.minimum(waits.within(*runs.spans()), excess)
    return runs.with_columns(cpu_ns=np.maximum(runs["cpu_ns"] - waited, 0))


def _stage(selected: SelectedSteps, runs: Table, stage: str) -> Stage:
    """Sum the runs of one stage; the longest run determines what bounds it."""
    wall = selected.length_ns
    cpu, device = int(runs["cpu_ns"].sum()), int(runs["device_ns"].sum())
    longest = int(np.argmax(runs["cpu_ns"] + runs["device_ns"]))
    cpu_ms, device_ms = (ns * MS / selected.count for ns in (cpu, device))
    share, bound_by = cpu / wall if wall else 0.0, runs.text("bound_by")[longest] or ""
    return Stage(stage, cpu_ms, device_ms, share, bound_by)


def _without_device(selected: SelectedSteps) -> tuple[dict[str, float], float]:
    """Shares of the steps with only Python running, by stage, and with exposed communication.

    Without recorded operators the first is empty: nothing shows what ran.
    """
    trace, steps = selected.trace, selected.steps
    wall = selected.length_ns or 1
    communicates = exposed_communication(trace, selected.rank, steps).total() / wall
    if not len(selected.work):
        return {}, communicates
    runs = selected.rows_of(trace["stages"])
    python_ns = python_time(trace, selected.rank, steps).within(runs["start_ns"], runs["end_ns"])
    spent = np.bincount(runs["stage"], python_ns, len(STAGES)) / wall
    return {STAGES[code]: float(spent[code]) for code in np.flatnonzero(spent).tolist()}, communicates


def _of_roots(selected: SelectedSteps, column: str) -> int | None:
    """The sum over the models of the rank that run; None if no parameter is known."""
    modules = selected.trace["modules"]
    roots = models_that_run(modules, selected.rank) & (modules[column] > 0)
    return int(modules[column][roots].sum()) if roots.any() else None


# -- places outside of training

_RANGE = re.compile(r"^stepscope\.(?:evaluation|checkpointing|block): (.*) \((.*):(\d{1,9})\)$")
_SAMPLED = re.compile(r"^(.*) \((.*):(\d{1,9})\)$")
_COMPREHENSION = re.compile(r"\.<locals>(\.<(listcomp|setcomp|dictcomp|genexpr|lambda)>)+$")
_FEWEST = 3  # samples of a function
_SAMPLED_STAGES = ("other", "data_loading")


def places_of(selected: SelectedSteps) -> list[StagePlace]:
    """The places that a capture marked or sampled, the longest first."""
    events = selected.trace.events
    named = events.text("name").where(lambda name: _RANGE.match(name) is not None)
    rows = np.flatnonzero(named & selected.chosen_events & on_host(selected.trace))
    trains = (events["stage"] >= 0) & ~events.text("stage").mask(*OUTSIDE_STAGES)
    around = innermost(events["parent"], named)
    rows = rows[~np.isin(rows, around[trains])]  # a teacher's forward pass is part of training
    spans = events.spans(rows)
    inside = Intervals(*selected.steps.spans()).within(*spans)  # a block may outlast them
    spent: dict[tuple[str, str], list[int]] = {}
    for row, time in zip(rows.tolist(), inside.tolist(), strict=True):
        key = (events.text("stage")[row] or "", events.text("name")[row] or "")
        spent.setdefault(key, []).append(time)
    found = [_place(selected, *key, times) for key, times in spent.items()]
    marked = Intervals(*spans)
    sampled = [place for stage in _SAMPLED_STAGES for place in _sampled(selected, stage, marked)]
    return sorted([*found, *sampled], key=lambda place: -place.ms)


def _sampled(selected: SelectedSteps, stage: str, marked: Intervals) -> list[StagePlace]:
    """What takes the time in a stage that no range marks, by function and line.

    The line of the loop that asks for a batch does not say what takes the time.
    """
    runs = selected.rows_of(selected.trace["stages"])
    runs = runs.take(runs.text("stage").mask(stage))
    left = Intervals(*runs.spans()).minus(marked)
    samples = samples_of(selected.trace)
    of_rank = selected.trace["tracks"]["rank"][samples["track"]] == selected.rank
    seen = count_samples(samples.take(of_rank), left)
    total = sum(map(Counter.total, seen.values()))
    places = [
        _sampled_place(selected, stage, left.total(), key[:2], lines, total)
        for key, lines in seen.items()
        if lines.total() >= _FEWEST and not (key[2] and stage == "data_loading")
    ]
    return [place for place in places if place.error_ms < place.ms]


def samples_of(trace: Trace) -> Table:
    """The instants at which a capture sampled the training loop's thread."""
    instants = trace["instants"]
    return instants.take(instants.text("category").mask(CATEGORY, IN_LOOP))


class CalledLine(NamedTuple):
    """A line of a function, and the lines that call it, inner ones first."""

    line: int
    called: tuple[str, ...] = ()  # such as `main (/home/me/train.py:64)`


def count_samples(samples: Table, spans: Intervals) -> dict[tuple[str, str, int], Counter[CalledLine]]:
    """How many samples in some spans saw each line, by function and file; in the loop also by line."""
    time: Times = samples["time_ns"]
    samples = samples.take(spans.cover(time))
    seen: defaultdict[tuple[str, str, int], Counter[CalledLine]] = defaultdict(Counter)
    named = [*zip(samples.text("name"), samples.text("category").mask(IN_LOOP), strict=True)]
    loops = {(name or "").rpartition(":")[0] for name, in_loop in named if in_loop}
    for name, in_loop in named:
        own, *called = (name or "").split(CALLED)
        if found := _SAMPLED.match(own):
            function, file, line = _COMPREHENSION.sub("", found[1]), found[2], int(found[3])
            in_loop |= not called and f"{function} ({file}" in loops  # a comprehension in it
            seen[function, file, line if in_loop else 0][CalledLine(line, tuple(called))] += 1
    return seen


def _sampled_place(
    selected: SelectedSteps,
    stage: str,
    spent_ns: int,
    where: tuple[str, str],
    lines: Counter[CalledLine],
    total: int,
) -> StagePlace:
    """A place with the time of its share of the samples.

    The error is of a 95 % interval by A. Agresti and B. A. Coull, "Approximate is better than
    'exact' for interval estimation of binomial proportions", The American Statistician 52 (1998).
    """
    count, each = lines.total(), spent_ns / selected.count / 1e6
    middle = (count + 2) / (total + 4)
    error = 2 * math.sqrt(middle * (1 - middle) / (total + 4))
    part, (line, called) = count / total, lines.most_common(1)[0][0]
    share = part * spent_ns / selected.length_ns
    return StagePlace(stage, *where, line, part * each, share, 0.0, count, error * each, called)


def _place(selected: SelectedSteps, stage: str, name: str, times: list[int]) -> StagePlace:
    said = _RANGE.match(name)
    function, file, line = said.groups() if said else ("", "", "0")
    each, share = sum(times) / selected.count / 1e6, sum(times) / selected.length_ns
    usual_ns = usual_of_places(selected.capture).get(name.partition(": ")[2])
    calls = len(times) / selected.count
    error = abs(each - calls * usual_ns / 1e6) if usual_ns else 0.0
    return StagePlace(stage, function, file, int(line), each, share, calls, error_ms=error)
