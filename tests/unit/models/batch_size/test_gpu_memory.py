"""Whether a step fits a GPU that is not there, from the allocations of estimates as on one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from stepscope.errors import BatchError
from stepscope.facts.roofline.rates import find_capacity
from stepscope.models.batch_size.entry_result import Result
from stepscope.models.batch_size.profile_session import estimated_point, gpu_memory, own_size

MB = 1 << 20


class Script:
    """1,000 MB of weights and 100 MB a sample; 64 MB are those of cuBLAS."""

    def __init__(self, samples: int = 1 << 20, fails_from: int = 1 << 30, autocast: bool = False) -> None:
        self.batch, self.autocast = 8, autocast
        self.samples, self.fails_from = samples, fails_from
        self.asked: list[int] = []

    def estimated(self, batch: int) -> Any:
        self.asked.append(batch)
        if batch >= self.fails_from:
            raise BatchError("the script fails")
        made = min(batch, self.samples)
        history = [
            (0, 1000 * MB),
            *((1 + n, 100 * MB) for n in range(made)),
            *((1 + n, -1) for n in range(made)),
        ]
        return {"history": history, "autocast": self.autocast, "samples": [made]}

    def on(self, *capacities: str) -> Result:
        entry: Any = SimpleNamespace(batch=self.batch)
        return gpu_memory(entry, list(map(find_capacity, capacities)), self.estimated)


@pytest.mark.parametrize(
    ("allocator", "reserved"), [("", 64 + 2 * 1000), ("expandable_segments:True", 64 + 100 + 1000 + 16)]
)
def test_the_script_s_settings_of_the_allocator_count(allocator: str, reserved: int) -> None:
    """A block of 100 MB pins the segment of one of 1,000; an expandable one grows by pages of 20 MB."""
    history = [(0, 1000 * MB), (0, -1), (1, 100 * MB), (2, 1000 * MB)]
    facts: Any = {"history": history, "allocator": allocator}
    assert estimated_point(8, facts).reserved == reserved * MB


def test_memory_is_estimated_at_the_edge_of_each_device() -> None:
    script = Script()
    result = script.on("16GiB", "24GiB")
    # 16 GiB less 700 MB are 15,716 MB, of which 14,652 are for samples; 24 GiB: 23,908 and 22,844.
    assert [result.fits(find_capacity(name))["batch"] for name in ("16GiB", "24GiB")] == [146, 228]
    assert script.asked == [8, 16, 146, 228]


@pytest.mark.parametrize(("autocast", "least", "most"), [(False, 132, 154), (True, 123, 167)])
def test_the_range_holds_5_percent_of_what_is_reserved_and_the_error_of_memory(
    autocast: bool, least: int, most: int
) -> None:
    """5 %, and 12 % in 16 bits."""
    low, high = Script(autocast=autocast).on("16GiB").fits(find_capacity("16GiB"))["batch_range"]
    assert (low, high) == (pytest.approx(least, abs=1), pytest.approx(most, abs=1))


@pytest.mark.parametrize(("capacity", "fits"), [("3GiB", "yes"), ("2600MiB", "unsure"), ("2GiB", "no")])
def test_the_own_size_fits_may_fit_or_does_not(capacity: str, fits: str) -> None:
    """1,864 MB, from 1,771 to 2,055, of what the context leaves: three quarters, or all less 668 MB."""
    limit = find_capacity(capacity)
    assert own_size(Script().on(capacity), limit)["fits"] == fits


@pytest.mark.parametrize(
    ("script", "note"),
    [
        (Script(samples=40), "a step at batch size 146 has fewer samples: its data may end before"),
        (Script(samples=12), "a step at batch size 146 has fewer samples: its data may end before"),
        (Script(samples=5), "a step at batch size 146 has fewer samples: its data may end before"),
        (Script(fails_from=100), "larger batch sizes are extrapolated: the script fails"),
    ],
)
def test_where_the_edge_cannot_be_looked_at_a_note_says_so(script: Script, note: str) -> None:
    result = script.on("16GiB")
    assert result.profile.warnings == (note,)
    assert result.fits(find_capacity("16GiB"))["batch"] == 146
    assert not result.profile.trusts(146)


@pytest.mark.parametrize(
    ("script", "asked"),
    [
        (Script(samples=12), [8, 16, 4, 146]),
        (Script(samples=5), [8, 16, 4, 2, 146]),
        (Script(fails_from=16), [8, 16, 4, 146]),
    ],
)
def test_where_the_data_ends_before_twice_the_own_size_a_half_is_looked_at(
    script: Script, asked: list[int]
) -> None:
    assert script.on("16GiB").fits(find_capacity("16GiB"))["batch"] == 146
    assert script.asked == asked


def test_memory_that_does_not_grow_is_said() -> None:
    script = Script(samples=0)
    assert script.on("16GiB").profile.warnings == (
        "memory does not grow with the batch size, so what fits at most is not known",
    )


def test_a_script_that_does_not_run_so_is_an_error() -> None:
    with pytest.raises(BatchError, match="the script fails"):
        Script(fails_from=1).on("16GiB")
