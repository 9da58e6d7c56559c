"""Apply rules to the steps of one rank, and order what they find."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from stepscope.analyze.finding import LEVELS, Finding, Gain
from stepscope.analyze.rule import Rule
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.trace_from_contexts import samples_instructions
from stepscope.base.parallel import in_threads
from stepscope.errors import RuleError, failure
from stepscope.facts.annotate.steps.missing_work import notes_on_missing, work_is_missing
from stepscope.facts.annotate.steps.step_table import capture_notes, coverage_note, longest_alone
from stepscope.facts.summary.facts import StepTimes
from stepscope.facts.summary.job_findings import JobFindings
from stepscope.facts.summary.report_facts import summarize
from stepscope.facts.summary.verdict import certain_share
from stepscope.models.ranks.job import findings_of
from stepscope.models.whatif.prediction import MOST_TASKS
from stepscope.trace.recorded_steps import core_share, later_parts, load_warning, waits_for_a_core

LEAST_GAIN = 0.01  # of the step: smaller gains are dropped
LEAST_EXPLAINED = 0.5  # of the idle time that bounds the step
MOST_GROUPS = 5  # that a reader is shown, and that are simulated together
_NO_ADVICE = "The trace is of {framework}; stepscope has advice for PyTorch and JAX only."
_SAME_EVIDENCE = 0.5  # of the events of the smaller finding
_VARY = 1.1  # medians of CPU times on a busy machine, against those on a quiet one
_STAGES = {"rest": "other"}  # as the recorder calls them
# Where one ends and the next begins, the recorder and the trace do not always agree: a function that no
# gradient flows through is `other` or `forward` there, and `loss` or `evaluation` for the recorder.
_MODEL, _UPDATE = ("forward", "evaluation", "loss"), ("loss", "zero_grad", "optimizer", "other")
_STAGES_AT_ONCE = {**dict.fromkeys(["", *_UPDATE], _UPDATE), "forward": _MODEL, "loss": _MODEL}


class Heading(msgspec.Struct, frozen=True):
    """What is shown above the findings."""

    source: str  # the path of the trace
    rules: int  # the number of applied rules
    excludes_warm_up: bool = False  # whether a first warm-up step was excluded
    # what a calling-context tree has times of: `operators`, or `device work` while instructions are
    # sampled; empty for other sources
    of_tree: str = ""
    without_lines: bool = False  # whether `stepscope run` records no lines of its framework
    notes: tuple[str, ...] = ()  # what to know about the steps before reading the findings
    unit: str = "step"  # what times are per: `step`; `run` of contexts of a whole run without known steps
    # the steps and what their device does, as in the report; None of a tree, which has no order in time
    steps: StepTimes | None = None
    # whether device work is missing in the file, so that only findings about recorded work count
    work_is_missing: bool = False
    step_ms: float = 0.0  # mean length of a step as recorded
    steady_ms: float = 0.0  # the same without one-off costs and delays
    rank: int = 0  # the analyzed rank
    job: JobFindings | None = None  # what all ranks show together; None for a single one
    wait: str = ""  # the report's verdict, if it is no work of a device or of the CPU


class Analysis(msgspec.Struct, frozen=True):
    """What the rules find on the steps of one rank: plain data, which can be kept."""

    heading: Heading  # what the findings are of
    findings: tuple[Finding, ...]  # by severity and then by gain
    # what the first `MOST_GROUPS` groups save together; None if too few are simulated
    together: Gain | None = None

    def to_json(self) -> dict[str, Any]:
        job = {"job": self.heading.job, "rank": self.heading.rank} if self.heading.job else {}
        return job | {
            "steps": msgspec.to_builtins(self.heading.steps),
            "findings": [one.to_json() for one in self.findings],
            "notes": list(self.heading.notes),
        }


class FindingGroup(msgspec.Struct, frozen=True):
    """A finding, and those that share its cause and give back less, by gain."""

    main: Finding
    related: tuple[Finding, ...] = ()


def analysis_of(context: RuleContext, rules: Sequence[Rule]) -> Analysis:
    """Apply rules to the steps of one rank, and simulate the first fixes together."""
    context.gains.prepare()
    findings = tuple(apply_rules(context, rules))
    heading = heading_of(context, len(rules), bool(findings))
    together = context.gains.combined([one.main.gain for one in group_findings(findings)[:MOST_GROUPS]])
    return Analysis(heading, findings, together)


def heading_of(context: RuleContext, rules: int, has_findings: bool) -> Heading:
    """What is shown above the findings of so many rules, or where there are none."""
    search, summary = context.search, context.measures.summary
    if not has_findings and search.delayed is not search.recorded:  # the report's verdict is stated
        summary = summarize(search.delayed, context.rank)
    tree, verdict = context.contexts if context.context_trace else None, summary.verdict
    timed = "" if tree is None else "device work" if samples_instructions(tree) else "operators"
    return Heading(
        context.trace.metadata.source,
        rules,
        context.search.excludes_warm_up,
        timed,
        context.is_jax or not context.has_advice,
        _notes(context),
        "run" if context.context_trace and context.is_jax else "step",
        None if context.context_trace else summary.steps,
        bool(work_is_missing(context.trace, context.rank)),
        context.measures.step_ms,
        context.measures.steady_ms,
        context.rank,
        findings_of(context.job) if context.job else None,
        "" if context.context_trace or verdict.bound_by in ("device", "cpu") else verdict.sentence,
    )


def _notes(context: RuleContext) -> tuple[str, ...]:
    trace = context.trace
    notes = [load_warning(trace.metadata.capture), coverage_note(trace, context.rank)]
    notes += [*notes_on_missing(trace, context.rank), longest_alone(context.steps)]
    return tuple(note for note in notes + capture_notes(trace, context.rank) if note)


def apply_rules(context: RuleContext, rules: Sequence[Rule]) -> list[Finding]:
    """The findings of the rules, by severity and then by the time that they save; raises RuleError
    if a rule fails.

    Findings with a gain below 1 % of the step are dropped. Rules that explain a stall in general
    apply only if no other finding explains what bounds the step, or half of what the CPU does.
    """
    found = _found(context, [rule for rule in rules if not rule.fallback])
    bound_by = context.measures.summary.verdict.bound_by
    explaining = {rule.name for rule in rules if bound_by in rule.explains}
    explained = [one.gain.ms for one in found if one.rule in explaining]
    # Loading and communication have one rule each; of what the CPU does a finding may be a part.
    most = LEAST_EXPLAINED * context.measures.idle_ms("host") if bound_by == "host" else 0.0
    if not explained or sum(explained) < most:
        found += _found(context, [rule for rule in rules if rule.fallback])
    # Gains are per training step, of the run too; shares are of different wholes.
    return sorted(found, key=lambda one: (-LEVELS.index(one.severity), -one.gain.ms, -one.share, one.rule))


def _found(context: RuleContext, rules: Sequence[Rule]) -> list[Finding]:
    """The findings of the rules, which are applied on all cores, in their order."""
    rows = len(context.events)
    each = in_threads(lambda rule: _apply(rule, context), rules, rows, most_rows=MOST_TASKS)
    return [one for findings in each for one in findings]


def group_findings(findings: Sequence[Finding]) -> list[FindingGroup]:
    """Findings with those of the same cause, or of the same events, under the first of them."""
    groups: list[FindingGroup] = []
    for finding in findings:
        place = next((at for at, one in enumerate(groups) if _related(one.main, finding)), None)
        if place is None:
            groups.append(FindingGroup(finding))
        else:
            group = groups[place]
            groups[place] = replace(group, related=(*group.related, finding))
    return groups


def _related(main: Finding, other: Finding) -> bool:
    if main.cause == other.cause:
        return True
    ours, theirs = (
        {part for place in one.evidence for part in place.events or place.contexts} for one in (main, other)
    )
    if not ours or not theirs:
        return _are_at_one_line(main, other)
    return len(ours & theirs) >= _SAME_EVIDENCE * len(theirs)


def _are_at_one_line(main: Finding, other: Finding) -> bool:
    """Whether the lines of the first have half of the time of the other: samples have no events."""
    lines = {(place.file, place.line) for place in main.evidence if place.line is not None}
    shared = sum(place.ms for place in other.evidence if (place.file, place.line) in lines)
    return shared > 0 and shared >= _SAME_EVIDENCE * sum(place.ms for place in other.evidence)


def _apply(rule: Rule, context: RuleContext) -> list[Finding]:
    try:
        named = [
            replace(finding, rule=rule.name, cause=rule.cause or rule.name)
            for finding in rule.function(context)
        ]
    except BaseException as error:
        raise RuleError(
            f"rule {rule.name} failed on {context.trace.metadata.source}: {failure(error)}"
        ) from error
    found = [_of_framework(context, _under_load(context, one)) for one in named]
    found = [one for one in found if one.share >= LEAST_GAIN or rule.notice]
    if not work_is_missing(context.trace, context.rank):
        return found
    return _on_devices(context, found) if not rule.explains else []  # idle time may have been work


def _on_devices(context: RuleContext, found: list[Finding]) -> list[Finding]:
    """Findings about recorded device work alone: what else took long may have waited for other work.

    Where the verdict is withheld nothing is certain of what they save: what is missing may take as long.
    """
    works = context.search.device_work
    events = ([event for place in one.evidence for event in place.events] for one in found)
    kept = [one for one, rows in zip(found, events, strict=True) if rows and works[rows].all()]
    if context.measures.summary.verdict.bound_by != "unknown":
        return kept
    gains = (replace(one.gain, range_ms=(0.0, one.gain.stated_ms[1])) for one in kept)
    return [replace(one, certain=0.0, gain=gain) for one, gain in zip(kept, gains, strict=True)]


def _of_framework(context: RuleContext, finding: Finding) -> Finding:
    """The finding; of a framework that no rule is written for, without advice for another."""
    if context.has_advice:
        return finding
    name = context.trace.metadata.framework
    return replace(finding, advice=_NO_ADVICE.format(framework=name), patch=None)


def _under_load(context: RuleContext, finding: Finding) -> Finding:
    """The finding, with a wider range where the process waited for a core.

    Device work takes no longer then. Other processes change CPU times little: an upper bound becomes
    the share that its stages have of those in later steps, and a range goes at least from there to there.
    """
    events = [event for place in finding.evidence for event in place.events]
    if not finding.share or (events and context.search.device_work[events].all()):
        return finding
    cores = core_share(context.trace.metadata.capture)
    least = certain_share(finding.share, context.measures.summary.verdict, cores)
    if least >= finding.share:
        return finding
    later, gain, whole = _later_share(context, finding), finding.gain, finding.steady_ms
    sure = max(least / finding.share, min(later.scale / _VARY, 1.0))
    low, high = gain.stated_ms  # an upper bound may save nothing
    most = max(high * _VARY * later.scale, high)
    within = later.share > 0 and gain.ms <= _VARY * later.evidence_ms  # all of it is in these stages
    staged = within and all(place.stage for place in finding.evidence)
    if staged and waits_for_a_core(context.trace.metadata.capture):
        most = min(max(most, high / later.step_ms * whole), _VARY * later.share * whole)
    most = min(most, whole)
    is_bound = within and gain.edit is None and not gain.changes
    ms = min(gain.ms * later.scale if is_bound else gain.ms, most)
    note = f"{gain.note}, as recorded".removeprefix(", ") if most > high else gain.note
    found = replace(finding, gain=replace(gain, ms=ms, note=note, range_ms=(min(sure * low, ms), most)))
    return replace(found, certain=min(least / found.share, 1.0))


class _LaterShare(NamedTuple):
    """The stages of a finding in the steps after the recording, by CPU time; 0 where it is unknown."""

    share: float  # of the step
    scale: float  # relative to their share of the recorded steps
    step_ms: float
    evidence_ms: float  # of the recorded steps


def _later_share(context: RuleContext, finding: Finding) -> _LaterShare:
    parts = later_parts(context.trace.metadata.capture) if finding.of == "step" else {}
    cpu = {_STAGES.get(name, name): part["cpu_ns"] for name, part in parts.items()}
    whole, later, recorded = max(sum(cpu.values()), 1), 0.0, 0.0
    spent, seen = float(sum(place.ms for place in finding.evidence)), set[str]()
    for place in finding.evidence:
        stages = _STAGES_AT_ONCE.get(place.stage, (place.stage,))
        later += place.ms * sum(cpu.get(one, 0) for one in stages) / whole
        recorded += place.ms * sum(map(context.measures.share_of_stage, stages))
        seen.update(stages if place.ms >= LEAST_GAIN * spent else ())
    share = sum(cpu.get(one, 0) for one in seen) / whole
    return _LaterShare(share, later / max(recorded, LEAST_GAIN * (spent or 1.0)), whole / 1e6, spent)
