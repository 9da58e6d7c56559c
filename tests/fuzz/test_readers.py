"""Every reader against damaged files: a trace or one clear line, never another exception.

Each seed of the corpus is read as it is by every target of its folder (`targets.py`); those of the
readers in `MUTATED` are damaged too. In CI the number of examples is bounded; longer:

    STEPSCOPE_FUZZ_EXAMPLES=100000 python -m pytest tests/fuzz

An input that fails belongs into the corpus (hypothesis prints the example). `fuzz.py` damages the
seeds of all targets for hours, guided by the lines that inputs reach.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from edits import EDITS, EXAMPLES
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from mutations import Edit, mutated
from reached_lines import PACKAGE
from targets import TARGETS

MUTATED = ("file", "manifest", "contexts", "model")


@pytest.mark.parametrize(
    ("target", "path"),
    [(name, path) for name, target in TARGETS.items() for path in target.seeds()],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_seeds(target: str, path: Path) -> None:
    TARGETS[target].check(path.read_bytes())


def test_the_sources_of_all_targets_exist() -> None:
    """Else the report of a target, and with it the table of executions, is lost."""
    places = {source for target in TARGETS.values() for source in target.sources}
    assert [source for source in sorted(places) if not (PACKAGE / source).exists()] == []


@pytest.mark.parametrize("target", MUTATED)
def test_mutated(target: str) -> None:
    files = [path.read_bytes() for path in TARGETS[target].seeds()]

    @seed(16)
    @settings(max_examples=EXAMPLES * len(files), deadline=None, database=None)
    @given(st.sampled_from(files), EDITS)
    def run(data: bytes, edits: list[Edit]) -> None:
        TARGETS[target].check(mutated(data, edits))

    run()
