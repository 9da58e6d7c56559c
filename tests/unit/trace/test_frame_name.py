"""The names of Python frames: what they tell, and what is none."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import build_contexts
from stepscope.facts.timeline.source_lines import frame_place
from stepscope.testing import drawn_trace
from stepscope.trace.frame_name import FrameName

LONG = f"train.py({'9' * 5000}): step"


@pytest.mark.parametrize(
    ("name", "frame"),
    [
        ("train.py(12): step", ("train.py", 12, "step")),
        ("torch/nn/module.py(7): <lambda>", ("torch/nn/module.py", 7, "<lambda>")),
        ("/a (1): b/c.py(2): f", ("/a (1): b/c.py", 2, "f")),
        ("<string>(1): <module>", ("<string>", 1, "<module>")),
        ("aten::mm", None),
        ("train.py(): step", None),
    ],
)
def test_a_frame_is_a_file_a_line_and_a_function(name: str, frame: tuple[str, int, str] | None) -> None:
    assert FrameName.of(name) == frame
    assert frame is None or str(FrameName(*frame)) == name


def test_a_number_that_no_line_has_is_part_of_a_name() -> None:
    assert FrameName.of(LONG) is None
    assert frame_place(LONG) is None
    tree = build_contexts(annotate(drawn_trace(f"main | 0 9 | {LONG} | cat=python")))
    assert tree.label(tree.search("train")[0]) == LONG
