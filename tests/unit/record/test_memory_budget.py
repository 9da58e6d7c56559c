"""How many steps fit into memory, from what each has added so far."""

from __future__ import annotations

from itertools import accumulate
from types import SimpleNamespace

import pytest

from stepscope.record.memory_budget import MemoryBudget, available_bytes, bytes_in_use

MB = 1 << 20


def steps_that_fit(megabytes: int, growth: list[int], early: bool = False) -> int:
    """How many steps are recorded, of which each adds some MB."""
    levels = iter(accumulate([500, *growth]))
    budget = MemoryBudget(megabytes, early, in_use=lambda: next(levels) * MB)
    for number in range(1, len(growth) + 1):
        if not budget.has_room():
            return number
    return len(growth)


@pytest.mark.parametrize(
    ("megabytes", "growth", "steps"),
    [
        (1000, [1] * 20, 20),
        (2100, [75] * 20, 4),  # 4 steps take 75 * 4 * 7 MB, a fifth would take more
        (4200, [75] * 20, 8),
        (100, [75] * 20, 1),  # a step was complete before anything was known
        (4200, [300, *[75] * 19], 8),  # the script allocated in its first step
        (1000, [50, -200, 50, 50], 4),  # and released: nothing is known of the profiler
    ],
)
def test_recording_ends_before_the_budget_does(megabytes: int, growth: list[int], steps: int) -> None:
    assert steps_that_fit(megabytes, growth) == steps


def test_an_early_window_has_a_quarter_of_it() -> None:
    assert steps_that_fit(8400, [75] * 20, early=True) == 4


def test_without_a_measure_nothing_is_limited() -> None:
    budget = MemoryBudget(1, in_use=lambda: None)
    assert all(budget.has_room() for _ in range(5))


def test_what_a_process_allocates_is_seen_though_freed_memory_is_used_again() -> None:
    before = bytes_in_use()
    if before is None:
        pytest.skip("the bytes in use are not known here")
    held = bytearray(64 * MB)
    assert bytes_in_use() - before > 60 * MB
    del held
    assert bytes_in_use() - before < 10 * MB


def test_half_of_what_is_available_is_the_default() -> None:
    if (available := available_bytes()) is None:
        pytest.skip("the memory that is available is not known here")
    assert MemoryBudget(0).bytes == pytest.approx(available / 2, rel=0.2)


def test_a_full_recording_says_how_many_steps_it_kept() -> None:
    pytest.importorskip("torch")
    from stepscope.record.torch_hooks import TorchRecording

    full = SimpleNamespace(has_room=lambda: False, bytes=600_000_000)
    recording = TorchRecording(window=SimpleNamespace(complete=[5, 6]), wanted=9, budget=full)
    assert recording.close_if_full()
    assert recording.warning.startswith("recording stopped after 2 steps of 9, as")
