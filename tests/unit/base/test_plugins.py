"""Rules and changes of other packages: found by entry points; a broken package costs a line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from stepscope.analyze import Rule
from stepscope.analyze.rule import discover_rules
from stepscope.base.plugins import plugins
from stepscope.models.whatif.changes import find_changes

ENTRIES = """
[stepscope.rules]
one = outside:many_copies
several = outside:RULES
[stepscope.changes]
one = outside:NO_LOGGING
again = outside:AMP
"""
OUTSIDE = """
from stepscope.analyze import Rule
from stepscope.models.whatif import Change
def rule(context): return []
def other(context): return []
def no_logging(graph): return graph
def amp(graph): return graph
many_copies, RULES = Rule(rule), [Rule(other)]
NO_LOGGING, AMP = Change(no_logging, group="Mine"), Change(amp)
"""


def install(folder: Path, entries: str, source: str) -> None:
    metadata = folder / "outside-1.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: outside\nVersion: 1\n")
    (metadata / "entry_points.txt").write_text(entries)
    (folder / "outside.py").write_text(source)


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "outside", raising=False)
    return tmp_path


def test_another_package_adds_rules_and_changes(outside: Path) -> None:
    install(outside, ENTRIES, OUTSIDE)
    assert [rule.name for rule in discover_rules()[-2:]] == ["rule", "other"]
    changes = find_changes()
    assert list(changes)[-1] == "no_logging"  # its group is unknown, so it comes last
    assert changes["amp"].group == "Compute"  # a built-in change stays


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import missing_module", "ModuleNotFoundError: No module named 'missing_module'"),
        ("RULES = 1", "it is no Rule and no list of them"),
    ],
)
def test_a_broken_package_is_left_out_with_a_line(
    outside: Path, capsys: pytest.CaptureFixture[str], source: str, reason: str
) -> None:
    install(outside, "[stepscope.rules]\nbad = outside:RULES\n", source)
    assert list(plugins("rules", Rule)) == []
    line = f"stepscope: ignored stepscope.rules of outside:RULES: {reason}\n"
    assert capsys.readouterr().err == line
