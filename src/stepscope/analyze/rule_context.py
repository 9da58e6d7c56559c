"""What a rule works with: the steps of one rank, to search, to measure, and to report on."""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from msgspec.structs import replace

from stepscope.analyze.event_search import EagerCalls, EventSearch
from stepscope.analyze.finding import JOB, LEVELS, Finding, Gain, Patch, Place, callers, only_call, patch_of
from stepscope.analyze.gains import Gains, glob
from stepscope.analyze.measures import Measures
from stepscope.analyze.source_places import MostSampled, PlaceFinder
from stepscope.analyze.trace_from_contexts import name_of_node
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.base.syntax_trees import parse_call
from stepscope.errors import BatchError
from stepscope.facts.contexts import ContextTree
from stepscope.facts.summary.facts import RunPlace
from stepscope.models.ranks.job import JobReport, findings_of, report_of_trace
from stepscope.trace.frame_name import is_users_frame
from stepscope.trace.recorded_steps import workers_of
from stepscope.trace.schema import TRAINING_STAGES
from stepscope.trace.trace import Metadata, Trace

__all__ = ["RuleContext", "glob"]

# A compilation's annotation has the line of its function, an instruction that of its kernel's source.
_KINDS_WITH_LINES = ("python", "annotation", "instruction")
# Files with the training loop of a library, or called by it: other loops use its models. The first
# that is found counts.
_LIBRARIES = tuple(
    (name, re.compile(pattern))
    for name, pattern in (
        ("transformers", r"(^|/)transformers/trainer\w*\.py"),
        ("lightning", r"(^|/)(pytorch_lightning|lightning/pytorch)/.*\.py"),
        ("keras", r"(^|/)keras/(.*/)?(trainer|training)\w*\.py"),
        ("timm", r"(^|/)timm/data/loader\.py"),
        ("accelerate", r"(^|/)accelerate/(accelerator|data_loader|optimizer|scheduler)\.py"),
    )
)


class RuleContext:
    """The steps of one rank: search events, measure them, estimate gains, make findings.

    `search` finds events, `measures` measures them, and `gains` estimates what a fix saves; the
    context itself words advice and makes findings.

    Args:
        trace: an annotated trace; of several ranks for rules that compare them. If it holds a
            calling-context tree and no events, rules search the tree: order and idle time are then
            unknown.
        rank: the rank to analyze; by default the one that `stepscope ranks` names.
        job: all ranks of the job compared, if the trace holds only one of them.

    Attributes:
        job: the ranks of the job compared, as `stepscope ranks` does; None for a single one.
        trace, events, steps, rank, step_count, contexts, context_trace: see `EventSearch`.

    Raises:
        TraceError: if there is no such rank, or no step.
    """

    def __init__(self, trace: Trace, rank: int | None = None, job: JobReport | None = None) -> None:
        self.job = job or report_of_trace(trace)
        first = findings_of(self.job).slowest_rank if self.job and job is None else None
        self.search = search = EventSearch(trace, rank, first)
        self.measures = Measures(search)
        self.gains = Gains(search, self.measures)
        self.trace, self.events, self.steps = search.trace, search.events, search.steps
        self.rank, self.step_count = search.rank, search.step_count
        self.contexts, self.context_trace = search.contexts, search.context_trace
        self._places = PlaceFinder(self.trace)

    @cached_property
    def eager(self) -> EagerCalls:
        """The operators that the training loop calls, with all that each costs on a CPU."""
        return EagerCalls(self.search)

    @property
    def is_jax(self) -> bool:
        """Whether the trace is of JAX or another program compiled by XLA."""
        return self.trace.metadata.is_of_xla

    @property
    def has_advice(self) -> bool:
        """Whether the rules' advice is for the framework of the trace, or that is unknown."""
        return self.is_jax or self.trace.metadata.framework in ("", "pytorch")

    @cached_property
    def trains(self) -> bool:
        """Whether the trace shows training: work of backward or of an optimizer."""
        return bool(self.trace.events.text("stage").mask(*TRAINING_STAGES).any())

    @property
    def serves(self) -> bool:
        """Whether the trace is of a server of a language model, whose iterations it names."""
        return bool(len(self.trace["iterations"])) and not self.trains

    @property
    def loop(self) -> str:
        """The loop that the steps are iterations of, in words."""
        return "training loop" if self.trains else "loop"

    def by_framework(self, pytorch: str, *, jax: str, inference: str = "") -> str:
        """The advice for the framework of the trace: PyTorch's for an unknown one, too; that for inference
        where nothing trains, if it differs, since advice on training needs evidence of it."""
        if self.is_jax:
            return jax
        return inference if inference and not self.trains else pytorch

    def advice(self, pytorch: str, *, jax: str = "", inference: str = "", **libraries: str) -> str:
        """The advice for the training library of the trace (by name as `library` returns it),
        before that for its framework; see `by_framework`."""
        plain = self.by_framework(pytorch, jax=jax or pytorch, inference=inference)
        known = self.library if self.trains or not inference else ""
        return f"{libraries[known]} {plain}" if known in libraries else plain

    def patch(self, what: str, name: str = "", **arguments: str | None) -> Patch | None:
        """The line that creates an object, with other arguments; None if it is not known.

        Of a number that is written elsewhere, as in a settings file, the line that has it.

        Args:
            what: `optimizer`, `loader` or `ddp`.
            name: its class; by default any.
            arguments: the source of each value; None removes the argument.
        """
        metadata = self.trace.metadata
        lines = lines_of_origin(metadata, what, arguments, name)
        if lines is None:
            return patch_of(metadata, what, arguments, name)
        return lines[0] if len(lines) == 1 else None

    @cached_property
    def library(self) -> str:
        """The training library that runs the loop; empty if none is visible in the trace."""
        names = self.trace.events.text("name").compact().values
        command = " ".join(map(str, self.trace.metadata.capture.get("command") or ()))
        texts = (*(name for name in names if ".py(" in name), command)
        found = {name for name, pattern in _LIBRARIES for text in texts if pattern.search(text)}
        return next((name for name, _ in _LIBRARIES if name in found), "")

    def finding(
        self,
        what: str,
        advice: str,
        rows: Rows,
        gain: Gain,
        *,
        recurs: bool = True,
        patch: Patch | None = None,
        limit: str = "critical",
    ) -> Finding:
        """A finding with its evidence.

        Args:
            what: sentences on what is slow; the first, of at most 12 words, is its title.
            advice: sentences on what to do; the first has at most 18 words.
            rows: the events that show it, at least one.
            gain: the estimated gain.
            recurs: whether it counts only as far as it recurs in the steps; not for what is known
                to come every N steps.
            patch: the lines to change, from `patch`.
            limit: the highest severity, where it is no certain defect.
        """
        if not len(rows):
            raise ValueError("expected at least one event as evidence, found none")
        if self.context_trace:
            places = self._places.of(np.asarray(rows), self.step_count, self.context_trace.calls)
            node = self.context_trace.node
            places = tuple(
                replace(one, events=(), contexts=tuple(node[list(one.events)].tolist())) for one in places
            )
        else:
            places = self._places.of(np.asarray(rows), self.step_count)
            gain = gain.scaled(self.measures.steadiness(rows)) if recurs else gain
        if self._is_single(rows):
            limit = min(limit, "warning", key=LEVELS.index)
        mostly_once = self.measures.steady_ms < self.measures.step_ms / 2  # setup rather than a step
        if not self.has_training_steps and (gain.edit is None or mostly_once):
            limit = "info"
        return self._made(what, advice, evidence=places, gain=gain, limit=limit, patch=patch)

    def finding_at(
        self, what: str, advice: str, places: tuple[Place, ...], gain: Gain, patch: Patch | None = None
    ) -> Finding:
        """A finding at places of the program, at least one, which no event of the trace shows."""
        return self._made(what, advice, evidence=places, gain=gain, patch=patch)

    def finding_of_run(
        self, what: str, advice: str, places: tuple[Place, ...], gain: Gain, patch: Patch | None = None
    ) -> Finding:
        """A finding on the whole run; times are per training step, the gain is from `gains.of_run`."""
        run_ms = self.measures.run_ms
        found = self.finding_at(what, advice, places, gain, patch)
        return replace(found, of="run", step_ms=run_ms, steady_ms=run_ms)

    def _made(self, what: str, advice: str, gain: Gain, **facts: Any) -> Finding:
        facts |= {"step_ms": self.measures.step_ms, "steady_ms": self.measures.steady_ms}
        if gain.edit is not None and (whole := self.gains.job_step_ms):
            facts |= {"step_ms": whole, "steady_ms": whole, "of": JOB}
        return Finding(what=what, advice=advice, gain=gain, rank=self.rank, **facts)

    @property
    def has_training_steps(self) -> bool:
        """Whether the trace marks steps; else all of it is analyzed as one step."""
        return not self.steps.text("evidence").mask("whole_trace").any()

    def _is_single(self, rows: Rows) -> bool:
        """Whether one CPU event of one step is nearly all of the evidence: it may be noise."""
        if self.context_trace or self.step_count > 1 or len(rows) < 2:
            return False
        time = self.events["duration_ns"][rows]
        worst = int(rows[int(time.argmax())])
        return bool(time.max() > 0.8 * time.sum()) and not self.search.device_work[worst]

    def finding_in_tree(self, what: str, advice: str, nodes: Rows, gain: Gain) -> Finding:
        """A finding with nodes of the calling-context tree as evidence, at least one."""
        if self.contexts is None or not len(nodes):
            raise ValueError("expected nodes of a calling-context tree as evidence, found none")
        places = tuple(self._place_in_tree(self.contexts, int(node)) for node in nodes)
        return self._made(what, advice, evidence=places, gain=gain)

    def _place_in_tree(self, tree: ContextTree, node: int) -> Place:
        path = list(tree.nodes.take(tree.path(node)).rows())
        lines = [row for row in path if row["kind"] in _KINDS_WITH_LINES and row["line"]]
        users = [one for one in lines if one["kind"] != "python" or is_users_frame(name_of_node(one))]
        lines = users or lines
        modules = [one["name"] for one in path if one["kind"] == "module"]
        count, ns = _measured(tree, node)
        return Place(
            name=tree.label(node),
            stage=path[-1]["stage"] or "",
            module=modules[-1] if modules else "",
            file=lines[-1]["file"] if lines else "",
            line=lines[-1]["line"] if lines else None,
            function=lines[-1]["name"] if lines and lines[-1]["kind"] == "python" else "",
            count=count / self.step_count,
            ms=ns / 1e6 / self.step_count,
            contexts=(node,),
        )

    def times(self, rows: Rows) -> str:
        """How often per step, in words: `once`, `4 times`."""
        calls = self.measures.calls(rows)
        return "once" if calls == 1 else f"{rounded(calls, 4)} times"

    def place(self, row: int) -> str:
        """The source of an event, such as ` in net.py:12`, else its module; empty if unknown."""
        first = self._places.of(np.array([row]), 1)[0]
        return f" in {first.short}" if first.short else ""

    def main_place(self, rows: Rows) -> str:
        """The source of most of the time of `rows`, as a sentence; empty if unknown."""
        first, *others = self._places.of(np.asarray(rows), 1)
        if not first.short:
            return ""
        return f" {'Most is in' if others else 'See'} {first.short}{callers(first.called, first.file)}."


def _measured(tree: ContextTree, node: int) -> tuple[float, float]:
    """Count and ns of a context; of an instruction its samples and its share of the kernel."""
    for name in ("call_ns", "device_ns"):
        if tree.has(name) and tree.own(name).count[node]:
            own = tree.own(name)
            return float(own.count[node]), float(own.sum[node])
    if not tree.has("stalls") or not tree.has("device_ns"):
        return 0.0, 0.0
    stalls, kinds = tree.inclusive("stalls").sum, tree.nodes.text("kind")
    kernel = next((one for one in reversed(tree.path(node)) if kinds[one] == "kernel"), node)
    part = float(stalls[node]) / max(float(stalls[kernel]), 1.0)
    return float(stalls[node]), part * float(tree.own("device_ns").sum[kernel])


# -- numbers that are written elsewhere


def lines_of_origin(
    metadata: Metadata, what: str, arguments: Mapping[str, str | None], name: str = ""
) -> list[Patch] | None:
    """The lines that may have the number that the only call that creates such an object takes from
    elsewhere; None if the call has the number itself, or none. The files are read as they are now."""
    call = only_call(metadata, what, name)
    wanted = next(((key, value) for key, value in arguments.items() if value and value.isdigit()), None)
    if call is None or wanted is None:
        return None
    from stepscope.models.batch_size.source_facts import keyword, written_number  # slow, and rarely needed

    node = parse_call(str(call["call"]))
    given = keyword(node, wanted[0]) if node else None
    spreads = node is not None and any(one.arg is None for one in node.keywords)
    is_here = given is not None and written_number(given, least=0) is not None
    if is_here or (given is None and not spreads):
        return None
    try:
        return list(dict.fromkeys(_lines(metadata, call, *wanted)))
    except (BatchError, RecursionError):
        return []


def _lines(metadata: Metadata, call: Mapping[str, Any], key: str, value: str) -> Iterator[Patch]:
    """The lines that may have the number: of the same file, else of settings files."""
    from stepscope.models.batch_size.resolve_number import Resolver
    from stepscope.models.batch_size.source_facts import Definition, keyword, read_facts
    from stepscope.models.batch_size.source_files import entries, read_text, settings_files

    path, capture = str(call["file"]), metadata.capture
    facts = read_facts(read_text(path), path)
    resolver = Resolver(facts, least=0)
    same = (one for one in facts.calls if facts.text[slice(*facts.span(one.node))] == call["call"])
    here = (one for one in same if one.node.lineno == call["line"])  # unless the file has changed
    site = next((Definition("loader", one.name, one.scope, one.node) for one in here), None)
    given = keyword(site.value, key) if site and isinstance(site.value, ast.Call) else None
    options = [str(word) for word in capture.get("command") or ()]
    origins = resolver.follow(given, site) if site and given is not None else []
    for origin in origins:
        passed = origin.option and facts.spelling_of(origin.option, options)
        if origin.node is not None and not passed:
            yield _replaced(path, facts.text, *facts.span(origin.node), value)
    if not origins:
        keys = resolver.missing or {key}
        for file in settings_files(path, options, facts.strings, capture.get("cwd")):
            text = read_text(str(file))
            for entry in entries(text, str(file)):
                if entry.name.rpartition(".")[2] in keys and entry.value == workers_of(capture):
                    yield _replaced(str(file), text, entry.start, entry.end, value)


def _replaced(path: str, text: str, start: int, end: int, value: str) -> Patch:
    """The line of a number, with another one."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    before = text[first:last]
    after = text[first:start] + value + text[end:last]
    return Patch(path, text.count("\n", 0, first) + 1, before.strip(), after.strip())


# -- findings on parts of the whole run


def share_of_run(context: RuleContext, stage: str) -> float | None:
    """The share of the run after its start-up that a stage of it takes; None if it was not measured."""
    run = context.measures.summary.run
    if context.context_trace or run is None or not run.steps or run.after_start_up <= 0:
        return None
    return run.shares.get(stage, 0.0) / run.after_start_up


def finding_of_part(
    context: RuleContext, stage: str, what: str, advice: str, least: float, line: MostSampled | None = None
) -> Iterator[Finding]:
    """The finding that a stage of the run takes too much of it, where `what` is the part and a
    verb, such as `Evaluation takes`; none below `least`, a share of the run. A `line` is the place of
    most of it, else the one where it begins is."""
    share, run = share_of_run(context, stage), context.measures.summary.run
    if share is None or run is None or share < least:
        return
    run_ms = context.measures.run_ms
    places = [
        _place(one, 1e3 * run.seconds / run.steps, run.steps) for one in run.places if one.stage == stage
    ]
    places = places or [Place(stage, stage, "", "", None, "", 0.0, share * run_ms)]
    first = places[0] = replace(places[0], **line._asdict() if line else {})
    where = f" Most is in {first.short}{callers(first.called, first.file)}." if first.short else ""
    gain = context.gains.of_run(share * run_ms, "at most this time")
    sentence = f"{what} {share:.0%} of the run after start-up.{where}"
    yield context.finding_of_run(sentence, advice, tuple(places), gain)


def _place(place: RunPlace, run_ms: float, steps: int) -> Place:
    """Where a stage of the run begins; `run_ms` is the whole run per step."""
    count, spent_ms = place.count / steps, place.share * run_ms
    return Place(place.function, place.stage, "", place.file, place.line, place.function, count, spent_ms)
