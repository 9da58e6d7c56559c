"""Findings for a terminal."""

from collections import defaultdict
from collections.abc import Iterator, Sequence

from msgspec.structs import replace
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from stepscope.analyze.analysis import MOST_GROUPS, Analysis, FindingGroup, Heading, group_findings
from stepscope.analyze.finding import JOB, WHOLE_RUN, Finding, Gain, Patch, Place, callers
from stepscope.analyze.source_places import plain_name
from stepscope.base.kernel_names import short_kernel
from stepscope.base.numbers import ms, percent, plural, rounded
from stepscope.facts.summary.facts import StepTimes
from stepscope.trace.frame_name import FrameName

_STYLE = {"critical": "bold red", "warning": "bold yellow", "info": "bold cyan"}
_PLACES = 4  # of a finding that are printed without --all
_NAME_WIDTH = 48  # characters of a kernel, so that a place fits a line


def print_findings(console: Console, analysis: Analysis, every: bool = False) -> None:
    """Print findings, those of one cause together."""
    findings, heading = analysis.findings, analysis.heading
    groups = group_findings(findings)
    shown = groups if every else groups[:MOST_GROUPS]
    parts = [_head(findings, heading), *_groups(shown, every, heading.unit)]
    tail = _tail(groups, shown, analysis.together, heading)
    hint = () if heading.without_lines else _hint(findings)
    console.print(Group(*parts, *tail, *hint), highlight=False)


def _head(findings: Sequence[Finding], heading: Heading) -> Text:
    job = f"{heading.job.headline}\n" if heading.job else ""
    text = Text(job, "bold yellow").append(heading.source.rpartition("/")[2], "bold")
    text.append(f" · rank {heading.rank}" if heading.job else "", "bold")
    text.append(f"   {plural(len(findings), 'finding')} · {plural(heading.rules, 'rule')}", "dim")
    if findings:
        step = f"{ms(heading.step_ms)} ms"
        of_tree = f"{step} of {heading.of_tree} per step" if heading.unit == "step" else f"{step} in all"
        length = of_tree if heading.of_tree else f"step time {step}"
        shorter = _is_shorter(heading.steady_ms, heading.step_ms)
        steady = f", {ms(heading.steady_ms)} ms without one-off costs and delays" if shorter else ""
        text.append(f" · {length}{steady}", "dim")
        text.append(" (warm-up excluded)" if heading.excludes_warm_up else "", "dim")
        text.append(_device(heading.steps), "dim")
    return text.append("".join(f"\n! {note}" for note in heading.notes), "yellow")


def _is_shorter(steady_ms: float, step_ms: float) -> bool:
    """Whether one-off costs and delays are so long that a share has to say which step it is of."""
    return 0 < steady_ms < 0.99 * step_ms


def _device(steps: StepTimes | None) -> str:
    """What the busiest device does in a step; empty if none works."""
    if steps is None or steps.device_busy_ms is None or steps.device_idle_ms is None:
        return ""
    return f" · device busy {ms(steps.device_busy_ms)} ms, idle {ms(steps.device_idle_ms)} ms"


def _groups(groups: Sequence[FindingGroup], every: bool, unit: str) -> Iterator[RenderableType]:
    for group in groups:
        main = group.main
        table = Table.grid(padding=(0, 1))
        table.add_column(width=8)
        table.add_column()
        related: list[RenderableType] = [_related(one) for one in group.related]
        if every:
            related = [part for one in group.related for part in (Text(), *_finding(one, unit))]
        body = Group(*_finding(main, unit), *related)
        table.add_row(Text(main.severity, _STYLE[main.severity]), body)
        yield Padding(table, (1, 0, 0, 0))


def _related(finding: Finding) -> Text:
    text = Text("related: ", "dim").append(finding.what, "not dim")
    saves = f"  {finding.rule}, saves up to {ms(finding.gain.ms)} ms"
    return text.append(saves if finding.gain.ms else f"  {finding.rule}", "dim")


def _tail(
    groups: Sequence[FindingGroup], shown: Sequence[FindingGroup], combined: Gain | None, heading: Heading
) -> Iterator[Text]:
    if not groups:
        yield Text(f"\n{nothing_found(heading)}", "dim")
        return
    if folded := len(groups) - len(shown):
        yield Text(f"\n… and {plural(folded, 'smaller finding')}; show with --all.", "dim")
    if combined is None:
        yield Text("\nEach gain is for that fix alone; gains do not add up.", "dim")
        return
    of_job = next((one.main.step_ms for one in groups if one.main.of == JOB), 0.0)
    unit = JOB if of_job else "step"
    share = percent(combined.ms / (of_job or heading.steady_ms or heading.step_ms))
    whole = " without delays" if not of_job and _is_shorter(heading.steady_ms, heading.step_ms) else ""
    text = Text("\nTogether, the simulated fixes above that do not exclude each other save ", "dim")
    yield text.append(f"{ms(combined.ms)} ms", "green").append(f", {share} of the {unit}{whole}.", "dim")


def nothing_found(heading: Heading) -> str:
    """What is said where no rule finds anything."""
    if heading.work_is_missing:
        return "Without all device work no finding is certain."
    if heading.wait:
        return f"No rule explains this: {heading.wait}"
    return f"No issue worth 1 % or more of the {heading.unit}."


def _hint(findings: Sequence[Finding]) -> Iterator[Text]:
    """How to record source lines, if no finding has one."""
    if findings and not any(place.line for one in findings for place in one.evidence):
        yield Text("To see the source lines of these calls, record with `stepscope run --contexts`.", "dim")


def _finding(finding: Finding, unit: str) -> Iterator[RenderableType]:
    unit = WHOLE_RUN if finding.of == WHOLE_RUN else unit
    yield Text(finding.what, "bold").append(f"  {finding.rule}", "not bold dim")
    yield Text(finding.advice)
    if finding.patch:
        yield Padding(_patch(finding.patch), (0, 0, 0, 2))
    places = places_by_line(finding.evidence)
    for place in places[:_PLACES]:
        yield Padding(_place(place, unit), (0, 0, 0, 2))
    if (rest := len(places) - _PLACES) > 0:
        yield Text(f"  … and {plural(rest, 'more place')}", "dim")
    if finding.gain.ms:
        yield gain_text(finding, unit)


def _patch(patch: Patch) -> Text:
    text = Text(f"{patch.file}:{patch.line}", "dim")
    for line in patch.text.split("\n"):
        text.append(f"\n{line}", "green" if line.startswith("+") else "red")
    return text


def gain_text(finding: Finding, unit: str) -> Text:
    gain = finding.gain
    low, high = gain.stated_ms
    is_bound = (low, high) == (0.0, gain.ms)
    unit = unit if finding.of == "step" else finding.of
    without = " without delays" if _is_shorter(finding.steady_ms, finding.step_ms) else ""
    whole = " after start-up" if finding.of == "run" else without
    text = Text("saves up to " if is_bound else "saves about ", "dim")
    text.append(f"{ms(gain.ms)} ms", "green").append(" per step" if finding.of == "run" else "", "dim")
    text.append(f", {percent(finding.share)} of the {unit}{whole}", "dim")
    if not is_bound:
        text.append(f" ({ms(low)} to {ms(high)} ms)", "dim")
    return text.append(f": {gain.words}", "dim")


def places_by_line(places: Sequence[Place]) -> list[Place]:
    """The places by time; those of one name and line in several modules are one."""
    groups = defaultdict[tuple[object, ...], list[Place]](list)
    for number, one in enumerate(places):
        known = (one.name, one.stage, one.file, one.line, one.function)
        groups[known if one.line is not None else (number,)].append(one)
    return sorted(map(_together, groups.values()), key=lambda one: -one.ms)


def _together(places: list[Place]) -> Place:
    modules = {one.module for one in places}
    return replace(
        places[0],
        module=places[0].module if len(modules) == 1 else plural(len(modules), "module"),
        count=sum(one.count for one in places),
        ms=sum(one.ms for one in places),
    )


def _place(place: Place, unit: str) -> Text:
    frame = FrameName.of(place.name)  # whose file and line follow
    name = frame.function if frame else plain_name(place.name)
    text = Text(short_kernel(name, _NAME_WIDTH), "cyan")
    text.append(f" × {rounded(place.count, 4)}, {ms(place.ms)} ms per {unit}", "dim")
    text.append(f", {place.stage.replace('_', ' ')}" if place.stage else "", "dim")
    calls = callers(place.called, place.file)
    return text.append(f"  {place.where}{calls}" if place.where else "")
