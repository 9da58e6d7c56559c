"""What memory is for, against drawn training loops in which it is known."""

from __future__ import annotations

from itertools import product

import pytest
from training_snapshots import USER, Training

LOOPS = [
    pytest.param(Training(native, begin, states, closure), id=f"{native}-{begin}-{states}-{closure}")
    for native, begin, states, closure in product((True, False), (-1, 1), (0, 1, 2), (True, False))
]


@pytest.mark.parametrize("loop", LOOPS)
def test_every_byte_at_the_peak_has_its_purpose(loop: Training, facts_of) -> None:
    facts = facts_of(loop.run(4))
    assert facts.peak_bytes == loop.allocator.peak
    assert {share.name: share.bytes for share in facts.kinds} == dict(loop.truth)
    assert facts.growth == ()


@pytest.mark.parametrize("loop", [Training(native=True), Training(native=True, from_step=1)])
def test_lines_are_those_of_the_user_s_python(loop: Training, facts_of) -> None:
    lines = {share.name.rpartition(":")[0] for share in facts_of(loop.run(4)).lines}
    assert lines <= {USER, "/home/me/project/model.py", "/home/me/project/layers.py", ""}
