"""The names of Python frames: what they tell, and what is none."""

from __future__ import annotations

import pytest

from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import build_contexts
from stepscope.facts.timeline.source_lines import frame_place
from stepscope.testing import drawn_trace
from stepscope.trace.frame_name import FrameName, is_users_frame

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


@pytest.mark.parametrize(
    ("name", "is_users"),
    [
        *((f"{file}(3): f", True) for file in ("train.py", "/home/me/model/net.py", "<ipython-input-4-0a>")),
        *((f"{file}(3): f", True) for file in ("torchx/a.py", "my_torch/a.py", "lib/python3_of_mine/a.py")),
        *((f"{package}/a.py(3): f", False) for package in ("torch", "torchvision", "triton", "stepscope")),
        *(
            (f"/opt/{folder}/x/a.py(3): f", False)
            for folder in ("site-packages", "dist-packages", "lib/python3")
        ),
        *((f"{file}(3): f", False) for file in ("/tmp/torchinductor_me/ab/c.py", "threading.py")),
        *((f"{file}(3): f", False) for file in ("json/decoder.py", "<string>", "<frozen os>", "a.pyc")),
        *(("aten::mm", False), ("train.py: f", False)),
    ],
)
def test_a_users_frame_is_of_no_library(name: str, is_users: bool) -> None:
    assert is_users_frame(name) is is_users
