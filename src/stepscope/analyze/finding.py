"""A finding: what is slow, what to do, where, the estimated gain, and the lines to change."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict, astuple, replace

from stepscope.base.syntax_trees import parse_call, parse_source
from stepscope.trace.schema import EVIDENCE, FINDINGS
from stepscope.trace.table import Table
from stepscope.trace.trace import Metadata, Trace

_LIBRARY = re.compile(r"(^|/)(site-packages|dist-packages|lib/python3[^/]*)/")


class Patch(msgspec.Struct, frozen=True):
    """Lines of the user's program, and what to replace them with."""

    file: str  # as recorded
    line: int  # the first of them
    before: str  # one or more lines without indentation
    after: str  # as many lines

    @property
    def text(self) -> str:
        """The lines that change, each before and after: `- old`, `+ new`."""
        pairs = zip(self.before.split("\n"), self.after.split("\n"), strict=True)
        changed = [(old, new) for old, new in pairs if old != new]
        return "\n".join(f"- {old.strip()}\n+ {new.strip()}" for old, new in changed)


def patch_of(
    metadata: Metadata, what: str, arguments: Mapping[str, str | None], name: str = ""
) -> Patch | None:
    """The patch of the only call that creates such an object; None if the call is unknown, in a
    library, one of several, or has these arguments already."""
    call = only_call(metadata, what, name)
    return _patched(call, arguments) if call else None


def only_call(metadata: Metadata, what: str, name: str = "") -> Mapping[str, Any] | None:
    """The only call of the user's that creates such an object, as the capture has it."""
    found = [
        one
        for one in metadata.capture.get("created") or ()
        if one.get("what") == what and name in ("", one.get("class")) and one.get("call")
    ]
    return found[0] if len(found) == 1 and not _LIBRARY.search(found[0]["file"]) else None


def _patched(created: Mapping[str, Any], arguments: Mapping[str, str | None]) -> Patch | None:
    call = str(created["call"])
    after = with_arguments(call, arguments)
    if after == call:
        return None
    source = str(created["source"])
    changed = source.replace(call, after, 1)
    if changed.count("\n") != source.count("\n"):
        return None  # an argument of several lines: no longer a line for a line
    return Patch(created["file"], created["line"], source, changed)


def with_arguments(call: str, arguments: Mapping[str, str | None]) -> str:
    """The source of a call with other keyword arguments; the same if one of them cannot be changed."""
    changed = call
    for name, value in arguments.items():
        changed = _with_argument(changed, name, value)
        if not _passes(changed, name, value):
            return call
    return changed


def _with_argument(call: str, name: str, value: str | None) -> str:
    node = parse_call(call)
    known = next((one for one in node.keywords if one.arg == name), None) if node else None
    if node is None or (known is None and value is None):
        return call
    return _added(call, node, f"{name}={value}") if known is None else _changed(call, known, value)


def _passes(call: str, name: str, value: str | None) -> bool:
    node = parse_call(call)
    if node is None:
        return False
    found = [ast.unparse(one.value) for one in node.keywords if one.arg == name]
    return found == ([] if value is None else [ast.unparse(parse_source(value, mode="eval"))])


def _changed(call: str, known: ast.keyword, value: str | None) -> str:
    begin, end = _offset(call, known.lineno, known.col_offset), _end(call, known.value)
    if value is not None:
        return f"{call[:begin]}{known.arg}={value}{call[end:]}"
    before, after = call[:begin], call[end:]
    if after.lstrip().startswith(","):
        return before + after.lstrip()[1:].lstrip(" ")
    return re.sub(r",[ \t]*$", "", before) + after


def _added(call: str, node: ast.Call, argument: str) -> str:
    values = [*node.args, *(one.value for one in node.keywords)]
    last = max((_end(call, one) for one in values), default=len(call) - 1)
    last += call[last:-1].rfind(")") + 1  # of an argument in parentheses
    return f"{call[:last]}{', ' if values else ''}{argument}{call[last:]}"


def _offset(text: str, line: int, column: int) -> int:
    """The position of a line and column (in bytes of UTF-8) of the syntax tree."""
    lines = text.split("\n")
    before = sum(len(one) + 1 for one in lines[: line - 1])
    return before + len(lines[line - 1].encode()[:column].decode())


def _end(text: str, node: ast.expr) -> int:
    return _offset(text, node.end_lineno or node.lineno, node.end_col_offset or 0)


LEVELS = ("info", "warning", "critical")
JOB = "job's step"  # `Finding.of` where the gain is simulated for all ranks, not for the analyzed one
WHOLE_RUN = "whole run"  # `Finding.of` where the gain and the lengths are of the run, not per step
WARNING, CRITICAL = 0.05, 0.20  # least gain, as a share of the step
_JSON_EVENTS = 1000  # of a place; the table `evidence` has all
_CALLERS = 3  # lines that a sentence names: the inner ones, the user's own, and that of the loop
_NARROW = 0.001  # a narrower range is one number


def short_path(file: str) -> str:
    """The last two parts of a path, of any system."""
    return "/".join(re.split(r"[/\\]", file)[-2:])


def callers(called: Sequence[str], file: str) -> str:
    """The lines that call a line of a file, in words, inner ones first.

    Example:
        >>> callers(["fit (/me/train.py:12)", "main (/me/train.py:64)"], "/me/data.py")
        ', called in me/train.py:12, from line 64'
    """
    # A comprehension is on the line that calls it.
    lines = list(dict.fromkeys(one.partition(" (")[2].removesuffix(")") for one in called))
    users = [one for one in lines if not _LIBRARY.search(one)]
    first = [*lines[:1], *users[:1], *users[-1:], *lines[1:2], *lines[-1:]]
    shown, words = list(dict.fromkeys(first))[:_CALLERS], []
    for one in sorted(shown, key=lines.index):
        path, _, line = one.rpartition(":")
        words.append(f"line {line}" if path == file else f"{short_path(path)}:{line}")
        file = path
    return f", called in {', from '.join(words)}" if words else ""


def line_words(file: str, line: int | None, function: str, called: Sequence[str] = ()) -> str:
    """A line for sentences, such as `me/train.py:12 in step, called in me/train.py:40`."""
    of = f" in {function}" if function not in ("", "<module>") else ""
    return f"{short_path(file)}:{line}{of}{callers(called, file)}"


class Gain(msgspec.Struct, frozen=True, eq=False):
    """The time that a fix could save."""

    ms: float  # per step
    note: str = ""  # the assumption; without a simulated change, the meaning of the upper bound
    changes: tuple[str, ...] = ()  # the simulated changes, as `stepscope whatif` takes them; may be empty
    range_ms: tuple[float, float] | None = None  # least and greatest gain; None without a simulated change
    edit: int | None = None  # the number of the simulated fix, for `Gains.combined`; None for a bound

    def __eq__(self, other: object) -> bool:
        """Whether all but the number is equal, which depends on the order in which rules ran."""
        return isinstance(other, Gain) and astuple(self)[:-1] == astuple(other)[:-1]

    @property
    def words(self) -> str:
        """The basis of the number, in one line."""
        names = list(dict.fromkeys(change.partition(":")[0] for change in self.changes))
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        is_change = bool(names) and names[0] != "scale"  # which only states what is simulated
        change = f"what-if {names[0]}{more}" if is_change else ""
        simulated = "simulated" if self.edit is not None and not is_change else ""
        return ", ".join(filter(None, (change, simulated, self.note)))

    @property
    def stated_ms(self) -> tuple[float, float]:
        """Least and greatest gain as shown: its range, or anything up to one number."""
        low, high = self.range_ms or (self.ms, self.ms)
        return (low, high) if high - low > _NARROW * high else (0.0, self.ms)

    def at_most(self, ms: float) -> Gain:
        """The gain and its range, limited to what the thing costs."""
        bounds = self.range_ms and (min(self.range_ms[0], ms), min(self.range_ms[1], ms))
        return replace(self, ms=min(self.ms, ms), range_ms=bounds)

    def as_bound(self, note: str) -> Gain:
        """The gain as the most that a fix may save, which may be nothing."""
        return replace(self, note=note, range_ms=(0.0, self.ms))

    def scaled(self, factor: float) -> Gain:
        bounds = self.range_ms and (self.range_ms[0] * factor, self.range_ms[1] * factor)
        return replace(self, ms=self.ms * factor, range_ms=bounds)


class Place(msgspec.Struct, frozen=True):
    """Events of one name at one place of the program: evidence of a finding."""

    name: str  # the name of the events
    stage: str  # that they belong to
    module: str  # the path of the module that they belong to
    file: str  # the user's code that caused them; empty if unknown
    line: int | None  # None if unknown
    function: str
    count: float  # number of events per step
    ms: float  # time per step in which any of them runs
    events: tuple[int, ...] = ()  # events.id of each
    contexts: tuple[int, ...] = ()  # nodes of the calling-context tree
    called: tuple[str, ...] = ()  # the lines that call it up to the loop's, such as `main (/x/train.py:9)`

    @property
    def where(self) -> str:
        """The module and the line, such as `layer1 · train.py:12 in step`; empty if unknown."""
        return " · ".join(filter(None, (self.module, self.code)))

    @property
    def code(self) -> str:
        """The line, such as `train.py:12 in step`; empty if unknown."""
        return self._code(self.file)

    @property
    def short(self) -> str:
        """For sentences: the line, of a long path the last two parts; else the module."""
        return self._code(short_path(self.file)) or self.module

    def _code(self, file: str) -> str:
        line = f":{self.line}" if self.line is not None else ""
        code = f"{file}{line}" + (f" in {self.function}" if self.function else "")
        return code if file else ""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """A result of a rule."""

    what: str  # one sentence on what is slow
    advice: str  # what to do
    evidence: tuple[Place, ...]  # the places, by time; never empty
    gain: Gain  # the time that a fix could save
    step_ms: float  # mean step length, ms
    rule: str = ""  # the name of the rule, which `apply_rules` enters
    rank: int = 0  # the analyzed rank
    cause: str = ""  # findings of one cause are shown together; the name of the rule by default
    limit: str = "critical"  # the highest severity that the evidence supports
    steady_ms: float = 0.0  # the same without first-use costs and one-off delays; shares are of it
    patch: Patch | None = None  # the lines to change, where the object to change is created in one known call
    certain: float = 1.0  # the part of the gain that other processes on the machine cannot explain, 0 to 1
    # what the gain is a share of: `step`, JOB, WHOLE_RUN, or `run` after start-up: both lengths are per step
    of: str = "step"

    @property
    def share(self) -> float:
        """The gain as a share of the steady step, or of the run, 0 to 1."""
        step_ms = self.steady_ms or self.step_ms
        return min(self.gain.ms / step_ms, 1.0) if step_ms else 0.0

    @property
    def severity(self) -> str:
        """One of `LEVELS`, by the certain share of the step, up to `limit`."""
        share = self.certain * self.share
        return LEVELS[min((share >= WARNING) + (share >= CRITICAL), LEVELS.index(self.limit))]

    def at_line(self, file: str, line: int | None, function: str, called: tuple[str, ...] = ()) -> Finding:
        """The finding with this line, and those that call it, as that of all its evidence."""
        place = {"file": file, "line": line, "function": function, "called": called}
        return replace(self, evidence=tuple(replace(one, **place) for one in self.evidence))

    def to_json(self) -> dict[str, Any]:
        """The finding as dicts and lists for `json`, with at most 1,000 events per place."""
        places = [{**asdict(one), "events": one.events[:_JSON_EVENTS]} for one in self.evidence]
        return {**self.facts(), "evidence": places}

    def facts(self) -> dict[str, Any]:
        return {
            "rule": self.rule,
            "severity": self.severity,
            "what": self.what,
            "advice": self.advice,
            "patch": self.patch and asdict(self.patch),
            "gain_ms": self.gain.ms,
            "share": self.share,
            "share_of": self.of,
            "gain_by": self.gain.words,
            "range_ms": self.gain.range_ms,
            "changes": self.gain.changes,
            "rank": self.rank,
            "cause": self.cause,
        }


def with_findings(trace: Trace, findings: Sequence[Finding]) -> Trace:
    """The trace with its tables `findings` and `evidence` filled."""
    return trace.with_table(_findings(findings)).with_table(_evidence(findings))


def _findings(findings: Sequence[Finding]) -> Table:
    names = ("rule", "severity", "rank", "what", "advice", "share", "gain_by")
    facts = [one.facts() for one in findings]
    columns: dict[str, Any] = {name: [one[name] for one in facts] for name in names}
    columns["gain_ns"] = [round(one.gain.ms * 1e6) for one in findings]
    columns["changes"] = [" ".join(one.gain.changes) for one in findings]
    return Table(FINDINGS, columns)


def _evidence(findings: Sequence[Finding]) -> Table:
    rows = [
        (number, event, context, place.module, place.file, -1 if place.line is None else place.line)
        for number, finding in enumerate(findings)
        for place in finding.evidence
        for event, context in [
            *((event, -1) for event in place.events),
            *((-1, context) for context in place.contexts),
        ]
    ]
    names = ("finding", "event", "context", "module", "file", "line")
    columns = zip(*rows, strict=True) if rows else ((),) * len(names)
    return Table(EVIDENCE, dict(zip(names, columns, strict=True)))
