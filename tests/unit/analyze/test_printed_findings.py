"""Findings as a terminal shows them, line by line and with their styles."""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace
from rich.console import Console

from stepscope.analyze import Finding, Gain, Place
from stepscope.analyze.analysis import Analysis, Heading
from stepscope.analyze.finding import JOB, WHOLE_RUN, Patch
from stepscope.analyze.findings_text import print_findings
from stepscope.facts.summary.facts import StepTimes
from stepscope.facts.summary.job_findings import JobFindings

PLACE = Place("aten::mm", "forward", "net.a", "train.py", 7, "step", 2.0, 1.0, (1,))


def found(ms: float, number: int = 0, **facts: Any) -> Finding:
    """A finding of a step of 100 ms, of its own cause and events."""
    place = replace(PLACE, events=(number,), line=number or 7)
    known: dict[str, Any] = {"rule": f"rule_{number}", "cause": f"cause {number}", "evidence": (place,)}
    known |= {"what": f"What {number}.", "advice": "Do.", "gain": Gain(ms, "at most"), "step_ms": 100.0}
    return Finding(**known | facts)


def printed(
    *findings: Finding, together: Gain | None = None, every: bool = False, styled: bool = False, **facts: Any
) -> str:
    heading = Heading("/me/run.json", 50, **{"step_ms": 100.0, "steady_ms": 100.0} | facts)
    out = io.StringIO()
    console = Console(file=out, width=96, force_terminal=styled, color_system="standard" if styled else None)
    print_findings(console, Analysis(heading, findings, together), every)
    text = re.sub(r" {3,}<", "<", re.sub(r"\x1b\[([\d;]*)m", r"<\1>", out.getvalue()))
    return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")


BUSY = StepTimes([0], "", 1.0, 1.0, 1.0, 1.0, 0.0, None, device_busy_ms=60.0, device_idle_ms=40.0)
IDLE = replace(BUSY, device_busy_ms=None)
JOB_OF_TWO = JobFindings(2, 90.0, 1, (), ("Rank 1 is slow.", "More."))
RELATED = found(3, 2, cause="cause 1")
SEVERAL = [found(30, 1), RELATED, *(found(20 - number, number) for number in range(3, 9))]
SIX_PLACES = tuple(replace(PLACE, line=number, ms=10.0 - number, events=(number,)) for number in range(6))
SPREAD = (replace(PLACE, ms=1.0), replace(PLACE, module="net.b", ms=2.5, count=1.0))
NOWHERE = replace(PLACE, line=None, file="", function="")
CASES: dict[str, tuple[Callable[[], str], str]] = {
    "one finding": (
        lambda: printed(found(30)),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "styles": (
        lambda: printed(found(30, patch=Patch("/me/train.py", 3, "a\nb", "c\nb")), styled=True),
        """
        <1;33>run.json<0><1;2;33>   1 finding · 50 rules<0><1;2;33> · step time 100.0 ms<0>

        <1;31>critical<0> <1>What 0.<0><2>  rule_0<0><1><0>
                 Do.
        <2>/me/train.py:3<0>
        <2;31>- a<0><2><0>
        <2;32>+ c<0><2><0>
        <36>aten::mm<0><2;36> × 2, 1.00 ms per step<0><2;36>, forward<0><36>  net.a · train.py:7 in step<0>
        <2>saves up to <0><2;32>30.00 ms<0><2>, 30% of the step<0><2>: at most<0><2><0>

        <2>Each gain is for that fix alone; gains do not add up.<0>
        """,
    ),
    "of three severities": (
        lambda: printed(found(30, 1), found(6, 2), found(2, 3), styled=True),
        """
        <1;33>run.json<0><1;2;33>   3 findings · 50 rules<0><1;2;33> · step time 100.0 ms<0>

        <1;31>critical<0> <1>What 1.<0><2>  rule_1<0><1><0>
                 Do.
        <36>aten::mm<0><2;36> × 2, 1.00 ms per step<0><2;36>, forward<0><36>  net.a · train.py:1 in step<0>
        <2>saves up to <0><2;32>30.00 ms<0><2>, 30% of the step<0><2>: at most<0><2><0>

        <1;33>warning <0> <1>What 2.<0><2>  rule_2<0><1><0>
                 Do.
        <36>aten::mm<0><2;36> × 2, 1.00 ms per step<0><2;36>, forward<0><36>  net.a · train.py:2 in step<0>
        <2>saves up to <0><2;32>6.00 ms<0><2>, 6.0% of the step<0><2>: at most<0><2><0>

        <1;36>info<0> <1>What 3.<0><2>  rule_3<0><1><0>
                 Do.
        <36>aten::mm<0><2;36> × 2, 1.00 ms per step<0><2;36>, forward<0><36>  net.a · train.py:3 in step<0>
        <2>saves up to <0><2;32>2.00 ms<0><2>, 2.0% of the step<0><2>: at most<0><2><0>

        <2>Each gain is for that fix alone; gains do not add up.<0>
        """,
    ),
    "more than five groups": (
        lambda: printed(*SEVERAL, together=Gain(40.04, "")),
        """
        run.json   8 findings · 50 rules · step time 100.0 ms

        critical What 1.  rule_1
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:1 in step
                 saves up to 30.00 ms, 30% of the step: at most
                 related: What 2.  rule_2, saves up to 3.00 ms

        warning  What 3.  rule_3
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:3 in step
                 saves up to 17.00 ms, 17% of the step: at most

        warning  What 4.  rule_4
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:4 in step
                 saves up to 16.00 ms, 16% of the step: at most

        warning  What 5.  rule_5
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:5 in step
                 saves up to 15.00 ms, 15% of the step: at most

        warning  What 6.  rule_6
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:6 in step
                 saves up to 14.00 ms, 14% of the step: at most

        … and 2 smaller findings; show with --all.

        Together, the simulated fixes above that do not exclude each other save 40.04 ms, 40% of the
        step.
        """,
    ),
    "all of them": (
        lambda: printed(*SEVERAL, every=True, together=Gain(40.04, "")),
        """
        run.json   8 findings · 50 rules · step time 100.0 ms

        critical What 1.  rule_1
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:1 in step
                 saves up to 30.00 ms, 30% of the step: at most

                 What 2.  rule_2
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:2 in step
                 saves up to 3.00 ms, 3.0% of the step: at most

        warning  What 3.  rule_3
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:3 in step
                 saves up to 17.00 ms, 17% of the step: at most

        warning  What 4.  rule_4
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:4 in step
                 saves up to 16.00 ms, 16% of the step: at most

        warning  What 5.  rule_5
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:5 in step
                 saves up to 15.00 ms, 15% of the step: at most

        warning  What 6.  rule_6
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:6 in step
                 saves up to 14.00 ms, 14% of the step: at most

        warning  What 7.  rule_7
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 13.00 ms, 13% of the step: at most

        warning  What 8.  rule_8
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:8 in step
                 saves up to 12.00 ms, 12% of the step: at most

        Together, the simulated fixes above that do not exclude each other save 40.04 ms, 40% of the
        step.
        """,
    ),
    "six places": (
        lambda: printed(found(30, evidence=SIX_PLACES)),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 10.00 ms per step, forward  net.a · train.py:0 in step
                   aten::mm × 2, 9.00 ms per step, forward  net.a · train.py:1 in step
                   aten::mm × 2, 8.00 ms per step, forward  net.a · train.py:2 in step
                   aten::mm × 2, 7.00 ms per step, forward  net.a · train.py:3 in step
                   … and 2 more places
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "a line in several modules": (
        lambda: printed(found(30, evidence=SPREAD)),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 3, 3.50 ms per step, forward  2 modules · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "a range": (
        lambda: printed(found(30, gain=Gain(30, "why", range_ms=(20.0, 40.0)))),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves about 30.00 ms, 30% of the step (20.00 to 40.00 ms): why

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "no gain": (
        lambda: printed(found(0), replace(RELATED, gain=Gain(0.0), cause="cause 0")),
        """
        run.json   2 findings · 50 rules · step time 100.0 ms

        info     What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 related: What 2.  rule_2

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "of a run": (
        lambda: printed(found(30, of="run"), found(30, 1, of=WHOLE_RUN), found(20, 2, of=JOB)),
        """
        run.json   3 findings · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms per step, 30% of the run after start-up: at most

        critical What 1.  rule_1
                 Do.
                   aten::mm × 2, 1.00 ms per whole run, forward  net.a · train.py:1 in step
                 saves up to 30.00 ms, 30% of the whole run: at most

        critical What 2.  rule_2
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:2 in step
                 saves up to 20.00 ms, 20% of the job's step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "of a job together": (
        lambda: printed(found(30, of=JOB), together=Gain(15.0, "")),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the job's step: at most

        Together, the simulated fixes above that do not exclude each other save 15.00 ms, 15% of the
        job's step.
        """,
    ),
    "delays": (
        lambda: printed(found(30, steady_ms=60.0), together=Gain(15.0, ""), steady_ms=60.0),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms, 60.00 ms without one-off costs and delays

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 50% of the step without delays: at most

        Together, the simulated fixes above that do not exclude each other save 15.00 ms, 25% of the
        step without delays.
        """,
    ),
    "hardly any delays": (
        lambda: printed(found(30, steady_ms=99.0), together=Gain(15.0, ""), steady_ms=99.0),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Together, the simulated fixes above that do not exclude each other save 15.00 ms, 15% of the
        step.
        """,
    ),
    "of a tree": (
        lambda: printed(found(30), of_tree="operators"),
        """
        run.json   1 finding · 50 rules · 100.0 ms of operators per step

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "of a run's tree": (
        lambda: printed(found(30), of_tree="device work", unit="run"),
        """
        run.json   1 finding · 50 rules · 100.0 ms in all

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per run, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the run: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "notes": (
        lambda: printed(found(30), excludes_warm_up=True, notes=("One.", "Two.")),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms (warm-up excluded)
        ! One.
        ! Two.

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "no lines": (
        lambda: printed(found(30, evidence=(NOWHERE,))),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        To see the source lines of these calls, record with `stepscope run --contexts`.
        """,
    ),
    "no lines in JAX": (
        lambda: printed(found(30, evidence=(NOWHERE,)), without_lines=True),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "device": (
        lambda: printed(found(30), steps=BUSY),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms · device busy 60.00 ms, idle 40.00 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "no device": (
        lambda: printed(found(30), steps=IDLE),
        """
        run.json   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "job": (
        lambda: printed(found(30), job=JOB_OF_TWO, rank=1),
        """
        Rank 1 is slow. 2 ranks compared, 90.00 ms per step.
        run.json · rank 1   1 finding · 50 rules · step time 100.0 ms

        critical What 0.  rule_0
                 Do.
                   aten::mm × 2, 1.00 ms per step, forward  net.a · train.py:7 in step
                 saves up to 30.00 ms, 30% of the step: at most

        Each gain is for that fix alone; gains do not add up.
        """,
    ),
    "nothing": (
        lambda: printed(),
        """
        run.json   0 findings · 50 rules

        No issue worth 1 % or more of the step.
        """,
    ),
    "nothing in a run": (
        lambda: printed(unit="run"),
        """
        run.json   0 findings · 50 rules

        No issue worth 1 % or more of the run.
        """,
    ),
    "nothing, although the report names a wait": (
        lambda: printed(wait="The device computes or copies 65% of the step, idles 35%."),
        """
        run.json   0 findings · 50 rules

        No rule explains this: The device computes or copies 65% of the step, idles 35%.
        """,
    ),
    "nothing, styled": (
        lambda: printed(styled=True),
        """
        <1;33>run.json<0><1;2;33>   0 findings · 50 rules<0>

        <2>No issue worth 1 % or more of the step.<0>
        """,
    ),
    "missing work": (
        lambda: printed(work_is_missing=True),
        """
        run.json   0 findings · 50 rules

        Without all device work no finding is certain.
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_printed(name: str) -> None:
    text, expected = CASES[name]
    assert text() == textwrap.dedent(expected).strip("\n")
