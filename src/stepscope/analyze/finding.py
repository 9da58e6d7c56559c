"""What a rule finds: what is slow, what to do, where it shows, and what that would give back."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

LEVELS = ("info", "warning", "critical")
WARNING, CRITICAL = 0.05, 0.20  # shares of the step given back from which a finding is one
_JSON_EVENTS = 1000


@dataclass(frozen=True)
class Gain:
    """The time that a finding could give back.

    Attributes:
        ms: of each step.
        note: what it supposes; where no change tells, the bound in words.
        changes: what-if changes that `stepscope whatif` takes, in this order; may be empty.
        range_ms: least and greatest, where the what-if engine tells.
    """

    ms: float
    note: str = ""
    changes: tuple[str, ...] = ()
    range_ms: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """What tells it, in one line."""
        more = f" and {len(self.changes) - 1} more" if len(self.changes) > 1 else ""
        change = f"what-if {self.changes[0]}{more}" if self.changes else ""
        return ", ".join(filter(None, (change, self.note)))


@dataclass(frozen=True)
class Place:
    """Alike events at one place of the program: a finding's evidence.

    Attributes:
        name: of the events.
        stage, module: that they belong to; a module by its path.
        file, line, function: the user's code that led to them, empty or None where not known.
        count: how many a step.
        ms: their time a step.
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
        """The best that is known of where it is, as `train.py:12 in step`, or empty."""
        line = f":{self.line}" if self.line is not None else ""
        code = f"{self.file}{line}" + (f" in {self.function}" if self.function else "")
        return " · ".join(filter(None, (self.module, code if self.file else "")))


@dataclass(frozen=True)
class Finding:
    """One result of a rule.

    Attributes:
        rule: its name.
        what: one sentence on what is slow.
        advice: one sentence on what to do.
        evidence: where it shows, what takes longest first; never empty.
        gain: the time it could give back.
        step_ms: the length of a step, for shares.
        rank: whose steps.
    """

    rule: str
    what: str
    advice: str
    evidence: tuple[Place, ...]
    gain: Gain
    step_ms: float
    rank: int = 0

    @property
    def share(self) -> float:
        """The part of the step that it could give back, 0 to 1."""
        return min(self.gain.ms / self.step_ms, 1.0) if self.step_ms else 0.0

    @property
    def severity(self) -> str:
        """One of `LEVELS`, by the share of the step given back."""
        return LEVELS[(self.share >= WARNING) + (self.share >= CRITICAL)]

    def to_json(self) -> dict[str, Any]:
        """The same as dicts and lists that `json` can write, with some of the events only."""
        places = [{**asdict(one), "events": one.events[:_JSON_EVENTS]} for one in self.evidence]
        return {
            "rule": self.rule,
            "severity": self.severity,
            "what": self.what,
            "advice": self.advice,
            "gain_ms": self.gain.ms,
            "share": self.share,
            "gain_by": self.gain.words,
            "range_ms": self.gain.range_ms,
            "changes": self.gain.changes,
            "rank": self.rank,
            "evidence": places,
        }
