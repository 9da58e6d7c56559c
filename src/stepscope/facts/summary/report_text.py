"""A summary as text for a terminal: the bottleneck first."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.base.numbers import count, ms, operations, percent, plural, printable, rounded, size
from stepscope.facts.summary.facts import (
    Device,
    Iterations,
    StagePlace,
    StepTimes,
    Summary,
    Update,
    UpdatedModel,
    Warning,
)
from stepscope.facts.summary.run_shares import run_lines
from stepscope.facts.summary.text_tables import STAGE_STYLE, TIME_WORDS, bar_for, plain_table, stage_words
from stepscope.facts.summary.work_text import efficiency_parts, kernels_parts, modules_table
from stepscope.trace.missing_records import NOTES
from stepscope.trace.recorded_steps import QUIET, apart_ms, load_warning

_ROOM_FOR_BARS = 76  # columns of the terminal
_SKEWED = 0.1  # of the median: if the mean is so far from it, both are shown
_UNEVEN = 3  # the longest step as a multiple of the shortest: then means describe neither
_OVERLAP = 1.005  # of the step: stages that add up to more overlap, less is rounding
_NOTABLE_COST = 0.01  # of the step: less changes no conclusion
_MOST_US = 10.0  # that recording one event takes, as when it is corrected
_MANY_PAGE_FAULTS = 500  # 2 MB, about half a millisecond
_MOST_OF_FAULT_MS = 0.005  # with what the caches lose; one takes 0.1 to 2 µs by itself
_ALIKE = 0.05  # relative; chosen: less is noise of either side
_ADDS_UP = 0.05  # of the cost: without a larger part, what is said would not add up
_UNEXPLAINED = 0.1  # of an unrecorded step: a difference that needs a cause
_TIME_STYLE = {
    "computing": "green",
    "copying": "blue",
    "communication": "magenta",
    "data": "yellow",
    "synchronization": "cyan",
    "host": "red",
    "launch": "bright_black",
    "one_off": "bright_black",
    "unknown": "bright_black",
}
_SHORT_HEADS = {
    "copying": "copies only",
    "communication": "comm. only",
    "synchronization": "sync",
    "one_off": "one-off",
}
_TIME_HEADS = {key: _SHORT_HEADS.get(key, key) for key in _TIME_STYLE}
SIDE = {"cpu": "CPU"}
_EVIDENCE = {
    "iteration": "a step is one iteration",
    "pattern": "inferred from a repeating pattern",
    "whole_trace": "not a step: this is the whole trace",
}
_LEFT_OUT = ("other_run", "other_trace", "merged_file")  # traces of a folder, which its report lacks
_OF_FOLDER = ("other_file", "unreadable_file", "rank_missing")
_PHASES = ("forward", "backward")
_NO_COUNT = "–"
_OF_PEAK = ".avg.pct_of_peak_sustained_elapsed"  # CUPTI's names of percentages
_LEAST_PLACE, _MOST_PLACES = 0.005, 5
_MOST_DEVICES = 32  # that are shown: as many as fit a screen, and machines have
_MOST_UPDATES = 32  # likewise
_LEAST_PART = 0.001  # of the step: what a percentage with one decimal shows
_MUCH = 0.05  # of the step, in `other`


def print_report(
    console: Console, summaries: Sequence[Summary], depth: int = 4, rank: int | None = None
) -> None:
    """Print a report as wide as the console, from one summary per rank.

    Args:
        depth: how many levels of the module tree are shown.
        rank: whose details are shown; by default the rank that computes longest.
    """
    console.print(Group(*ReportText(summaries, depth, console.width, rank).parts()), highlight=False)


def picture(summaries: Sequence[Summary], depth: int = 4, rank: int | None = None) -> str:
    """The report as an SVG picture."""
    title = f"stepscope report {summaries[0].source.rpartition('/')[2]}"
    return drawn(lambda console: print_report(console, summaries, depth, rank), title)


def drawn(show: Callable[[Console], None], title: str) -> str:
    """What `show` prints as an SVG picture of a terminal of 110 columns."""
    console = Console(record=True, width=110, file=io.StringIO(), markup=False, emoji=False)
    show(console)
    fonts = r"@font-face \{[^}]*\}\s*"  # where it is shown, each asks a server on the internet for a font
    return printable(re.sub(fonts, "", console.export_svg(title=title), count=2))


def recording_cost(summary: Summary) -> str:
    """What recording cost and was removed, added to the mean step; empty if it is below the noise.

    The noise is the error of the unrecorded steps' median, from which the cost is known.
    """
    cost, steps = summary.recording_cost, summary.steps
    if why := cost.get("unknown"):
        return f"times include the cost of recording: {why}"
    if not cost:
        return ""
    removed, unrecorded = cost["removed_ns"] / 1e6, cost["unrecorded_ns"] / 1e6
    memory = min(cost.get("memory_ns", 0) / 1e6, removed)
    notes = []
    if removed > max(_NOTABLE_COST, cost.get("unrecorded_error", 0.0)) * unrecorded:
        each = (removed - memory) / max(cost["events"], 1) * 1e3
        # More is not of events, but of the recorder between two steps.
        by_event = f": {each:.1f} µs per event for {count(cost['events'])} events" * (each <= _MOST_US)
        notes.append(
            f"recorded steps took {ms(steps.mean_ms + removed)} ms, of which {ms(removed)} ms is "
            f"recording{by_event}"
        )
        if memory > _ADDS_UP * removed:
            pages = count(cost["recorded_page_faults"] - cost["unrecorded_page_faults"])
            notes[0] += f" and {ms(memory)} ms for {pages} page faults (memory the profiler keeps)"
    if cost["recorded_ns"] / 1e6 - removed - unrecorded > _UNEXPLAINED * unrecorded:
        other = _other_cause(summary, cost["recorded_ns"] / 1e6 - removed - unrecorded)
        notes.append(f"unrecorded steps take {ms(unrecorded)} ms; the rest of the difference {other}")
    if estimated := cost.get("estimated_steps"):
        notes.append(f"what recording cost {plural(estimated, 'step')} is an estimate: later steps did less")
    if share := cost.get("missing_share"):
        missing = f"{percent(share)} of the steps that followed take {ms(cost['missing_ns'] / 1e6)} ms each"
        more = round(2 / share)
        notes.append(
            f"{missing}, and no recorded step is like them: stepscope run --steps {more} records some"
        )
    return "; ".join(notes)


def host_and_device(summary: Summary) -> str:
    """Which of the two limits steps that nothing records, and by how much; empty if not timed."""
    apart = apart_ms(summary.capture)
    if apart is None:
        return ""
    host, device = apart
    who = "CPU" if host > device else "device"
    by = f"the {who} limits it" if abs(host - device) > _ALIKE * max(host, device) else "both limit it"
    return f"each alone, the CPU needs {ms(host)} ms for a step and the device {ms(device)} ms: {by}"


def _other_cause(summary: Summary, ms: float) -> str:
    """Why recorded steps took so much longer than unrecorded ones, besides the recording itself."""
    if summary.core_share is not None and summary.core_share < QUIET:
        return "is what other processes took"
    cost = summary.recording_cost
    before, later = (cost.get(f"{kind}_page_faults", 0) for kind in ("recorded", "unrecorded"))
    explained = before >= later + _MANY_PAGE_FAULTS and (before - later) * _MOST_OF_FAULT_MS >= ms / 2
    if not explained or cost.get("memory_ns", 0) > 0:
        return "has another cause"
    return f"is due to memory: {count(before)} page faults per recorded step, {count(later)} later"


def _inner_steps(steps: StepTimes) -> str:
    """What a call of a compiled program does that loops over batches; empty for others."""
    batches = f"; each sums the gradients of {steps.inner_batches} micro-batches" * (steps.inner_batches > 1)
    if steps.inner > 1:
        return f"a step is one call that trains {steps.inner} times{batches}"
    if steps.inner == 0:
        return f"a step is one call that trains in a loop of unknown length{batches}"
    return f"a step{batches.removeprefix('; each')}" if batches else ""


class ReportText:
    """The parts of a report, each as text or a table."""

    def __init__(self, summaries: Sequence[Summary], depth: int, width: int, rank: int | None) -> None:
        self.all, self.depth, self.width = summaries, depth, width
        chosen = [summary for summary in summaries if summary.rank == rank]
        self.main = max(
            chosen or summaries, key=lambda one: max((of.computing_ms for of in one.devices), default=0.0)
        )

    def parts(self) -> Iterator[RenderableType]:
        yield self.header()
        yield self.step()
        if self.main.run:
            yield Text("\n" + "\n".join(run_lines(self.main.run)))
        if len(self.all) > 1:
            on_devices = any(summary.devices for summary in self.all)
            yield self.devices_of_ranks() if on_devices else self.stages_of_ranks()
        if self.main.stages:
            yield self.stages()
        if lines := places_text(self.main):
            yield lines
        if self.main.updates:
            yield updates_table(self.main)
        if self.main.iterations:
            yield iterations_table(self.main.iterations)
        yield from (self.device(device) for device in self.main.devices[:_MOST_DEVICES])
        if self.main.counters:
            yield self.counters()
        if self.main.efficiency:
            yield from efficiency_parts(self.main.efficiency)
        if self.main.modules:
            yield modules_table(self.main, self.depth, self.width)
        if self.main.kernels:
            yield from kernels_parts(self.main, self.width)
        if footer := self.footer():
            yield footer

    # -- head

    def header(self) -> Text:
        summary, ranks = self.main, max(self.main.world_size, len(self.all))
        names = sorted({device.name for device in summary.devices if device.name})
        steps = len(summary.steps.numbers) + summary.steps.warm_up_steps
        facts = [summary.framework, *names, plural(steps, "step")]
        facts += [f"rank {summary.rank} of {ranks}"] if ranks > 1 else []
        line = Text.assemble((summary.source.rpartition("/")[2], "bold"))
        line.append("   " + " · ".join(fact for fact in facts if fact), "dim")
        if summary.capture.get("outcome", "complete") != "complete":
            line.append(f"\n{summary.capture.get('message', '')}", "yellow")
        if load := load_warning(summary.capture):
            line.append(f"\n! {load}", "yellow")
        notes = [one for one in summary.warnings if one.code in NOTES]
        notes += [one for each in self.all for one in each.warnings if one.code in _LEFT_OUT]
        for warning in notes:
            if warning.message not in summary.verdict.sentence:
                line.append(f"\n! {warning.message}", "yellow")
        return line

    def step(self) -> Text:
        steps = self.main.steps
        text = Text.assemble("\n", ("Step ", "bold"), (ms(steps.mean_ms), "bold"), " ms")
        if len(steps.numbers) > 1:
            spread = f"{ms(steps.min_ms)} to {ms(steps.max_ms)}, ± {ms(steps.std_ms)}"
            is_skewed = abs(steps.mean_ms - steps.median_ms) > _SKEWED * steps.median_ms
            spread += f", median {ms(steps.median_ms)}" if is_skewed else ""
            text.append(f"   {spread} over {len(steps.numbers)} steps", "dim")
        if steps.unknown_spread:
            text.append(f"   {steps.unknown_spread}", "dim")
        if steps.evidence in _EVIDENCE:
            text.append(f"   {_EVIDENCE[steps.evidence]}", "yellow")
        if steps.warm_up:
            others = f" and {steps.warm_up_steps - 1} after it" if steps.warm_up_steps > 1 else ""
            left_out = f"step {steps.warm_up.step} ({ms(steps.warm_up.ms)} ms){others}"
            text.append(f"\nexcludes the warm-up {left_out}", "dim")
        if cost := recording_cost(self.main):
            text.append(f"\n{cost}", "dim")
        if apart := host_and_device(self.main):
            text.append(f"\n{apart}", "dim")
        if step_is := self.main.capture.get("step_is"):
            text.append(f"\na step is {step_is}", "dim")
        if inner := _inner_steps(steps):
            text.append(f"\n{inner}", "dim")
        if self.main.efficiency and (sizes := self.main.efficiency.unequal_steps):
            least_most = " to ".join(map(operations, sizes))
            text.append(f"\nbatches differ in size: {least_most} per step; the larger take longer", "dim")
        style = _TIME_STYLE.get(self.main.verdict.bound_by, "green")
        return text.append("\n▶ ", style).append(self.main.verdict.sentence, "bold")

    def stages_of_ranks(self) -> Table:
        """CPU time by stage: without devices, waiting for other ranks is part of it."""
        found = {stage.stage for summary in self.all for stage in summary.stages}
        names = [stage for stage in STAGE_STYLE if stage in found]
        table = plain_table(
            "Ranks, wall ms per step", "rank", "step>", *(f"{head}>" for head in map(stage_words, names))
        )
        for summary in self.all:
            spent = {stage.stage: stage.cpu_ms for stage in summary.stages}
            cells = (ms(spent.get(name, 0.0)) for name in names)
            table.add_row(self.marked(summary), ms(summary.steps.mean_ms), *cells)
        table.caption = Text("▼ details below; waiting: stepscope ranks", "dim")
        return table

    def marked(self, summary: Summary) -> str:
        """The number of a rank; that of the details has a mark."""
        return f"{summary.rank} ▼" if summary is self.main else str(summary.rank)

    def devices_of_ranks(self) -> Table:
        devices = [device for summary in self.all for device in summary.devices]
        noted = {
            key
            for device in devices
            for key, time in device.parts_ms.items()
            if time >= _LEAST_PART * device.window_ms
        }
        rare = {"copying", "unknown", "one_off"} - noted
        shown = {key: head for key, head in _TIME_HEADS.items() if key not in rare}
        heads = (f"{head}>" for head in ("step", *shown.values()))
        table = plain_table("Ranks, ms per step", "rank", *heads)
        for summary in self.all:
            device = max(summary.devices, key=lambda device: device.computing_ms, default=None)
            times = _times(device) if device else {}
            cells = (ms(times.get(key, 0.0)) if device else "–" for key in shown)
            table.add_row(self.marked(summary), ms(summary.steps.mean_ms), *cells)
        table.caption = Text("data, sync, host, launch: idle. ▼ details below", "dim")
        return table

    # -- stages and devices

    def stages(self) -> Table:
        device = bool(self.main.devices)
        bars = [""] * (self.width >= _ROOM_FOR_BARS or not device)
        heads = ["", "wall ms>", "of step>", *bars]
        heads += [*(["device ms>", *bars] if device else []), "bound by"]
        table = plain_table("Stages, per step", *heads)
        times = [time for stage in self.main.stages for time in (stage.cpu_ms, stage.device_ms)]
        longest = max(times, default=0.0) or 1.0
        for stage in self.main.stages:
            style = STAGE_STYLE[stage.stage]
            name = Text(stage_words(stage.stage), style)
            cells: list[RenderableType] = [name, ms(stage.cpu_ms), percent(stage.share)]
            cells += [bar_for(stage.cpu_ms / longest, style, self.width) for _ in bars]
            if device:
                cells += [ms(stage.device_ms)]
                cells += [bar_for(stage.device_ms / longest, style, self.width) for _ in bars]
            table.add_row(*cells, Text(SIDE.get(stage.bound_by, stage.bound_by), "dim"))
        self.note_overlap(table)
        return table

    def note_overlap(self, table: Table) -> None:
        """Say if device times of stages add up to more than the step."""
        total = sum(stage.device_ms for stage in self.main.stages)
        length = self.main.steps.mean_ms
        if total > _OVERLAP * length:
            note = f"device times overlap: {ms(total)} ms in all, {ms(length)} ms per step"
            table.caption = Text(note, "dim")

    def device(self, device: Device) -> Table:
        name = f"Device {device.device}" if len(self.main.devices) > 1 else "Device"
        table = plain_table(f"{name}, per step", "", "ms>", "of step>", "")
        window = device.window_ms or 1.0
        for key, time in _times(device).items():
            if time / window >= _LEAST_PART:
                words = Text(TIME_WORDS[key], _TIME_STYLE[key])
                share = time / window
                table.add_row(words, ms(time), percent(share), bar_for(share, _TIME_STYLE[key], self.width))
        if device.overlapped_ms / window >= _LEAST_PART:
            words = Text("communication overlapped by computing", "dim")
            table.add_row(words, ms(device.overlapped_ms), percent(device.overlapped_ms / window))
        return table

    def counters(self) -> Table:
        table = plain_table("Hardware counters", "~", "mean>", "while working>", "device>")
        for counter in self.main.counters:
            share, name = counter.name.endswith(_OF_PEAK), counter.name.removesuffix(_OF_PEAK)
            cells = [
                _NO_COUNT if mean is None else percent(mean / 100) if share else rounded(mean, 4)
                for mean in (counter.mean, counter.working)
            ]
            table.add_row(f"{name}, of peak" if share else name, *cells, str(counter.device))
        return table

    # -- the rest

    def footer(self) -> Text:
        summary = self.main
        facts = []
        if summary.data_wait_ms:
            facts.append(f"Data loading takes {ms(summary.data_wait_ms)} ms per step.")
        if summary.parameters is not None:
            bytes_ = f" ({size(summary.parameter_bytes)})" if summary.parameter_bytes else ""
            facts.append(f"The model has {count(summary.parameters)} parameters{bytes_}.")
        for device, peak in islice(summary.peak_memory_bytes.items(), _MOST_DEVICES):
            facts.append(f"Peak memory on {device}: {size(peak)}.")
        if (others := len(summary.peak_memory_bytes) - _MOST_DEVICES) > 0:
            facts.append(f"{others:,} more devices have memory.")
        if (others := len(summary.devices) - _MOST_DEVICES) > 0:
            facts.append(f"{others:,} more devices work.")
        text = Text("".join(f"\n{fact}" for fact in facts))
        steps = summary.steps
        if steps.max_ms > _UNEVEN * steps.min_ms > 0:
            text.append("\n! ", "yellow").append(
                f"the longest step takes {rounded(steps.max_ms / steps.min_ms)} times as long as the "
                "shortest, and all figures are means: show one step alone, or record more"
            )
        for warning in self.warnings():
            text.append("\n! ", "yellow").append(warning.message)
            text.append(f" ({warning.count:,} times)" if warning.count > 1 else "", "dim")
        return text

    def warnings(self) -> list[Warning]:
        """Warnings of the folder and of the rank shown, without those in the header."""
        told = (self.main.capture.get("outcome"), *NOTES, *_LEFT_OUT)
        return [
            warning
            for summary in self.all
            for warning in summary.warnings
            if warning.code in _OF_FOLDER or (summary is self.main and warning.code not in told)
        ]


def _times(device: Device) -> dict[str, float]:
    return {key: device.parts_ms.get(key, 0.0) for key in _TIME_STYLE}


def updates_table(summary: Summary) -> Table:
    """A row for each update, and one for each model in it: device time if there is a device."""
    side, where = ("device", "device") if summary.devices else ("cpu", "wall")
    found = {stage.stage for update in summary.updates for stage in update.stages}
    stages = [stage for stage in STAGE_STYLE if stage in found]
    heads = (f"{stage_words(stage)}>" for stage in stages)
    table = plain_table(f"Updates by optimizer, {where} ms per step", "", "times>", *heads, "of step>")
    for update in summary.updates[:_MOST_UPDATES]:
        _add_update(table, update, stages, side, summary.steps.mean_ms or 1.0)
        for model in update.models if len(update.models) > 1 else []:
            table.add_row(Text(f"  {model.path}", "dim"), "", *_of_model(model, stages, side), "")
    if (others := len(summary.updates) - _MOST_UPDATES) > 0:
        table.add_row(f"and {others} more optimizers")
    return table


def _add_update(table: Table, update: Update, stages: list[str], side: str, step_ms: float) -> None:
    spent = {stage.stage: getattr(stage, f"{side}_ms") for stage in update.stages}
    cells = (Text(ms(spent[stage]) if stage in spent else "", STAGE_STYLE[stage]) for stage in stages)
    share = getattr(update, f"{side}_ms") / step_ms
    table.add_row(update.optimizer, rounded(update.count), *cells, percent(share))


def _of_model(model: UpdatedModel, stages: list[str], side: str) -> list[Text]:
    """The times of a model's passes below those of the update; it has no other stages."""
    spent = {phase: getattr(model, f"{phase}_{side}_ms") for phase in _PHASES}
    return [Text(ms(spent[stage]) if spent.get(stage) else "", "dim") for stage in stages]


def iterations_table(kinds: list[Iterations]) -> Table:
    """The kinds as a table of a report."""
    heads = ("count>", "wall ms>", "prompts>", "prompt tokens>", "decoding>", "decoded tokens>")
    table = plain_table("Iterations, means", "", *heads)
    for kind in kinds:
        numbers = (kind.prefill_requests, kind.prefill_tokens, kind.decode_requests, kind.decode_tokens)
        cells = (_NO_COUNT if number is None else count(round(number)) for number in numbers)
        name = Text(stage_words(kind.stage), STAGE_STYLE[kind.stage])
        table.add_row(name, f"{kind.count}", ms(kind.ms), *cells)
    return table


def places_text(summary: Summary) -> Text:
    """The longest places, one on a line; why the lines of `other` are not known, if it matters."""
    places = summary.places[:_MOST_PLACES]
    lines = [_place_line(place) for place in places if place.share >= _LEAST_PLACE]
    other = sum(stage.share for stage in summary.stages if stage.stage == "other")
    if summary.not_sampled and other >= _MUCH:
        lines.append(f"  other has no functions and lines: {summary.not_sampled}")
    return Text("\n".join(lines), "dim")


def _place_line(place: StagePlace) -> str:
    name = "" if place.function == "<module>" else f"{place.function}, "
    where = f"{name}{place.file.rpartition('/')[2]}:{place.line}"
    time = f"about {ms(place.ms)}" if place.samples else ms(place.ms)
    time += f" ± {ms(place.error_ms)}" * (place.samples > 0 or place.error_ms > _SKEWED * place.ms)
    samples = f" ({plural(place.samples, 'sample')})" * (place.samples > 0)
    return f"  {time} ms of {stage_words(place.stage)} in {where}{samples}"
