"""A finding: what is slow, what to do, where, and the estimated gain."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from stepscope.analyze.call_patch import Patch

LEVELS = ("info", "warning", "critical")
WARNING, CRITICAL = 0.05, 0.20  # least gain, as a share of the step
_JSON_EVENTS = 1000
_NARROW = 0.001  # a narrower range is one number


def short_path(file: str) -> str:
    """The last two parts of a path, of any system."""
    return "/".join(re.split(r"[/\\]", file)[-2:])


@dataclass(frozen=True)
class Gain:
    """The time that a fix could save.

    Attributes:
        ms: per step.
        note: the assumption; without a simulated change, the meaning of the upper bound.
        changes: the simulated changes, as `stepscope whatif` takes them; may be empty.
        range_ms: least and greatest gain; None without a simulated change.
        edit: the number of the simulated fix, for `Gains.combined`; None for a bound.
    """

    ms: float
    note: str = ""
    changes: tuple[str, ...] = ()
    range_ms: tuple[float, float] | None = None
    edit: int | None = field(default=None, compare=False, repr=False)

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
        """The gain, limited to what the thing costs.

        Args:
            ms: the cost per step.
        """
        if self.ms <= ms:
            return self
        return self.scaled(ms / self.ms)

    def scaled(self, factor: float) -> Gain:
        """The gain times a factor."""
        bounds = self.range_ms and (self.range_ms[0] * factor, self.range_ms[1] * factor)
        return replace(self, ms=self.ms * factor, range_ms=bounds)


@dataclass(frozen=True)
class Place:
    """Events of one name at one place of the program: evidence of a finding.

    Attributes:
        name: the name of the events.
        stage, module: the stage and the path of the module that they belong to.
        file, line, function: the user's code that caused them; empty or None if unknown.
        count: number of events per step.
        ms: time per step.
        events: events.id of each.
        contexts: nodes of the calling-context tree.
    """

    name: str
    stage: str
    module: str
    file: str
    line: int | None
    function: str
    count: float
    ms: float
    events: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()

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


@dataclass(frozen=True)
class Finding:
    """A result of a rule.

    Attributes:
        rule: the name of the rule.
        what: one sentence on what is slow.
        advice: what to do.
        evidence: the places, by time; never empty.
        gain: the time that a fix could save.
        step_ms: mean step length, ms.
        rank: the analyzed rank.
        cause: findings of one cause are shown together; the name of the rule by default.
        limit: the highest severity that the evidence supports.
        patch: the lines to change, where the object to change is created in one known call.
        steady_ms: the same without first-use costs and one-off delays; shares are of it.
        certain: the part of the gain that other processes on the machine cannot explain, 0 to 1.
    """

    rule: str
    what: str
    advice: str
    evidence: tuple[Place, ...]
    gain: Gain
    step_ms: float
    rank: int = 0
    cause: str = ""
    limit: str = "critical"
    steady_ms: float = 0.0
    patch: Patch | None = None
    certain: float = 1.0

    @property
    def share(self) -> float:
        """The gain as a share of the steady step, 0 to 1."""
        step_ms = self.steady_ms or self.step_ms
        return min(self.gain.ms / step_ms, 1.0) if step_ms else 0.0

    @property
    def severity(self) -> str:
        """One of `LEVELS`, by the certain share of the step, up to `limit`."""
        share = self.certain * self.share
        level = (share >= WARNING) + (share >= CRITICAL)
        return LEVELS[min(level, LEVELS.index(self.limit))]

    def to_json(self) -> dict[str, Any]:
        """The finding as dicts and lists for `json`, with at most 1,000 events per place."""
        places = [{**asdict(one), "events": one.events[:_JSON_EVENTS]} for one in self.evidence]
        return {**self.facts(), "evidence": places}

    def facts(self) -> dict[str, Any]:
        """The same without evidence."""
        return {
            "rule": self.rule,
            "severity": self.severity,
            "what": self.what,
            "advice": self.advice,
            "patch": self.patch and asdict(self.patch),
            "gain_ms": self.gain.ms,
            "share": self.share,
            "gain_by": self.gain.words,
            "range_ms": self.gain.range_ms,
            "changes": self.gain.changes,
            "rank": self.rank,
            "cause": self.cause,
        }
