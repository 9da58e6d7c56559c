"""Sources and settings on which a search would take seconds: each is searched or refused at once."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tiers import family

from stepscope.errors import BatchError
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.site import edit_site
from stepscope.models.batch_size.source_files import find_settings, read_text

MEGABYTE = 1 << 20
LINES = {
    "word": "a" * MEGABYTE,
    "brackets": "[" * MEGABYTE,
    "spaces": " " * MEGABYTE,
    "keys": "a: " * (MEGABYTE // 3),
    "dots": "a.b" * (MEGABYTE // 3),
    "entries": "batch_size: 4, " * (MEGABYTE // 15),
    "many lines": "key: 1\n" * (MEGABYTE // 7),
    "objects in objects": '{"a":' * (MEGABYTE // 5),
    "lists in lists": "- " * (MEGABYTE // 2),
    "indented": "".join(" " * level + "a:\n" for level in range(1400)),
    "tables": "[a]\n" * (MEGABYTE // 4),
    "anchors": "&a " * (MEGABYTE // 3),
    "quotes": '"' * MEGABYTE,
}


def seconds_of_cpu(work: object) -> float:
    start = time.process_time()
    work()  # type: ignore[operator]
    return time.process_time() - start


@pytest.mark.parametrize("suffix", ["yaml", "toml", "json"])
@pytest.mark.parametrize("name", LINES)
def test_settings_of_a_megabyte_are_searched_at_once(name: str, suffix: str) -> None:
    assert seconds_of_cpu(lambda: find_settings(LINES[name], f"a.{suffix}")) < 2


@pytest.mark.parametrize("text", ["batch_size: {}", "batch_size = {}", '{{"batch_size": {}}}'])
@pytest.mark.parametrize("suffix", ["yaml", "toml", "json"])
def test_a_number_of_thousands_of_digits_is_no_batch_size(text: str, suffix: str) -> None:
    assert find_settings(text.format("9" * 5000), f"a.{suffix}") == []
    assert [site.value for site in find_settings(text.format(64), f"a.{suffix}")] == [64]


@pytest.mark.parametrize(
    "line",
    [
        "x = [" + "1, " * 300_000 + "]",
        "batch_size=4;" * 80_000,
        "f(" * MEGABYTE,
        "x=4\n" * 200_000,
        "x=4\n" * 99_999,
    ],
    ids=["list", "statements", "calls", "lines", "short lines"],
)
def test_python_that_nobody_wrote_by_hand_is_refused(line: str) -> None:
    def search() -> None:
        with pytest.raises(BatchError, match=r"is too long|nobody wrote it"):
            find_site(line, "train.py")

    assert seconds_of_cpu(search) < 1


LOADER = "DataLoader(self.d, batch_size=self.b)"
MANY = {
    "attributes": f"class A:\n    b = 4\n    def f(self):\n        return {LOADER}\n" * 3000,
    "parameters": "def f(b=4):\n    return DataLoader(d, batch_size=b)\nf(b=4)\n" * 4000,
    "arguments": f"C(b=4, c=C(b=8)); {LOADER}\n" * 4000,
    "entries": "c = dict(b=4); DataLoader(d, batch_size=c['b'])\n" * 4000,
    "getters": "c = dict(b=4); DataLoader(d, batch_size=c.get('b', 8))\n" * 4000,
    "sums": "class A:\n    b = 4 + c.b\n" * 3000 + f"{LOADER}\n" * 3000,
}


@pytest.mark.parametrize("name", family(MANY, 2, every=2, unit=0))
def test_loaders_whose_number_may_come_from_thousands_of_places_are_refused(name: str) -> None:
    def search() -> None:
        with pytest.raises(BatchError, match="too many calls or places"):
            find_site(MANY[name], "train.py")

    assert seconds_of_cpu(search) < 2


def test_thousands_of_candidates_are_found_at_once_and_not_all_listed() -> None:
    text = "DataLoader(data, batch_size=4)\n" * 5000
    with pytest.raises(BatchError) as error:
        find_site(text, "train.py")
    assert "5000 (" in str(error.value)
    assert len(str(error.value)) < 5000


def test_aliases_that_multiply_are_not_followed() -> None:
    yaml = pytest.importorskip("yaml")
    levels = "".join(f"l{n + 1}: &l{n + 1} [{', '.join([f'*l{n}'] * 9)}]\n" for n in range(12))
    text = f"l0: &l0 [1]\n{levels}batch_size: 4\n"
    assert yaml.safe_load(text)
    (site,) = find_settings(text, "a.yaml")

    def edit() -> None:
        with pytest.raises(BatchError, match="what aliases repeat"):
            edit_site(text, site, 8)

    assert seconds_of_cpu(edit) < 2


def test_long_settings_are_changed_by_hand() -> None:
    text = "key: 1\n" * 10_000 + "batch_size: 4\n"
    (site,) = find_settings(text, "a.yaml")
    with pytest.raises(BatchError, match="too long to be checked"):
        edit_site(text, site, 8)


def test_a_pipe_or_a_huge_file_is_not_read(tmp_path: Path) -> None:
    """A recording may name any path as its script."""
    os.mkfifo(tmp_path / "pipe.py")
    with (tmp_path / "huge.py").open("wb") as file:
        file.truncate(1 << 40)
    for name, reason in (("pipe.py", "a pipe or a device"), ("huge.py", "no source file of at most 64 MB")):
        with pytest.raises(BatchError, match=reason):
            read_text(str(tmp_path / name))
