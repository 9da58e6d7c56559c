"""docs/reference/analyzer_rules.md: every rule and the example of a custom rule."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.analyze import RULES, Rule, RuleContext, apply_rules, load_rules
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "analyzer_rules.md").read_text("utf-8")
LOOKUPS = "\n".join(
    [
        "main | 0 1000 | ProfilerStep#0",
        "main | 1 500 | nn.Module: Net_0",
        *(f"main | {at} {at + 9} | aten::embedding" for at in range(10, 310, 10)),
    ]
)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_page_says_of_each_rule_what_the_rule_says(rule: Rule) -> None:
    assert f"| `{rule.name}` | {rule.summary} | {rule.silent} |" in PAGE


def test_the_example_of_a_rule_runs(tmp_path: Path) -> None:
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    file = tmp_path / "mine.py"
    file.write_text(example[1])
    assert len([line for line in example[1].splitlines() if line.strip()]) <= 10
    context = RuleContext(annotate(drawn_trace(LOOKUPS)))
    (finding,) = apply_rules(context, load_rules(file))
    assert finding.rule == "embeddings"
    assert finding.evidence[0].count == 30
    assert finding.gain.ms == pytest.approx(0.27 * 0.8)
