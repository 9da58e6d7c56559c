"""Prices: each with its date and source, and a user's own table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepscope.errors import BatchError
from stepscope.facts.roofline.rates import known_gpus
from stepscope.models.devices import parse_targets, read_prices

ONE = {
    "name": "big",
    "device": "A100",
    "count": 4,
    "usd_per_hour": 8.0,
    "date": "2030-01-01",
    "source": "an invoice",
}


def file(folder: Path, *instances: object) -> str:
    path = folder / "prices.json"
    path.write_text(json.dumps({"instances": instances}))
    return str(path)


def test_every_price_has_a_date_and_a_source() -> None:
    for one in read_prices().instances:
        assert one.date[:2] == "20"
        assert one.source
        assert one.provider
    assert len({one.name for one in read_prices().instances}) == len(read_prices().instances)


def test_devices_and_instances_can_be_asked_for() -> None:
    found = parse_targets("h100, p4d.24xlarge,MI300X", read_prices())
    assert [target.name for target in found] == ["H100", "A100", "MI300X"]
    names = [target.instance.name if target.instance else None for target in found]
    assert names == ["lambda-1x-h100-sxm", "p4d.24xlarge", None]


def test_a_device_leaves_room_for_its_context() -> None:
    (l4,) = parse_targets("L4", read_prices())
    assert l4.usable_bytes == 24 * 2**30 - 700_000_000


def test_data_sheets_have_memory_and_power() -> None:
    assert all(gpu["memory"] >= 16 for gpu in known_gpus())
    assert [gpu["name"] for gpu in known_gpus() if gpu["watts"] is None] == ["MI210"]


def test_a_users_table_replaces_the_packages(tmp_path: Path) -> None:
    cheap = {**ONE, "name": "small", "count": 1, "usd_per_hour": 1.9}
    prices = read_prices(file(tmp_path, ONE, cheap))
    (target,) = parse_targets("A100", prices)
    assert target.instance is not None
    assert (target.instance.name, target.instance.usd_per_device_hour) == ("small", 1.9)
    assert parse_targets("H100", prices)[0].instance is None


@pytest.mark.parametrize(
    ("instance", "problem"),
    [
        ({**ONE, "device": "Z9"}, "big has the unknown device 'Z9'"),
        ({**ONE, "device": "a100"}, "unknown device"),  # names are as in the data sheets
        ({**ONE, "usd_per_hour": 0}, "usd_per_hour"),
        ({**ONE, "count": 0}, "count"),
        ({"name": "big"}, "missing required field"),
    ],
)
def test_a_table_of_the_wrong_shape_is_refused(tmp_path: Path, instance: object, problem: str) -> None:
    with pytest.raises(BatchError, match=problem):
        read_prices(file(tmp_path, instance))


def test_a_missing_table_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BatchError, match="cannot read prices from"):
        read_prices(str(tmp_path / "nowhere.json"))


def test_an_unknown_name_is_refused_with_those_that_are_known() -> None:
    with pytest.raises(BatchError, match=r"'Z9'; choose one of B200, .*, p6-b200"):
        parse_targets("A100,Z9", read_prices())
    with pytest.raises(BatchError, match="found none"):
        parse_targets(" ,", read_prices())
