"""Which of the devices that a file lists an event's device number means."""

from __future__ import annotations

import pytest

from stepscope.trace.trace import Metadata

A, B = {"id": 0, "name": "A"}, {"id": 1, "name": "B"}


@pytest.mark.parametrize(
    ("devices", "number", "name"),
    [
        ((A, B), 1, "B"),
        (({"name": "A"}, {"name": "B"}), 1, "B"),
        (({"index": 1, "name": "B"}, A), 0, "A"),
        ((A, B), 2, None),
        ((A,), 2, "A"),  # AMD's numbers count the CPUs too
        ((A, {**B, "name": "A"}), 5, "A"),
        ((), 0, None),
    ],
)
def test_a_number_means_a_device(
    devices: tuple[dict[str, object], ...], number: int, name: str | None
) -> None:
    assert Metadata(devices=devices).device(number).get("name") == name
