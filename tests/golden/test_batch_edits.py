"""The right number changes, nothing else does, and undo restores the file byte for byte.

Each folder of `entries` holds a training script as people write them and, in `expected.json`, the
edit that sets its batch size to 48: the line, what stands there and what shall; or the lines that
it must ask about, or that there is none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.errors import AmbiguousBatchSize, BatchError
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.site import edit_site
from stepscope.models.batch_size.source_files import read_source

ENTRIES = sorted(path.parent for path in Path(__file__).parent.glob("entries/*/expected.json"))
EXPECTED = {entry.name: json.loads((entry / "expected.json").read_text("utf-8")) for entry in ENTRIES}
EDITED = [entry for entry in ENTRIES if "line" in EXPECTED[entry.name]]
ASKED = [entry for entry in ENTRIES if "ambiguous" in EXPECTED[entry.name]]


def find(entry: Path) -> Any:
    expected = EXPECTED[entry.name]
    script = entry / "train.py"
    arguments = expected.get("arguments", [])
    return find_site(read_source(script).text, str(script), arguments, choice=expected.get("choice"))


@pytest.fixture(autouse=True)
def beside_the_entry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings files are named relative to where a script runs."""
    if "entry" in request.fixturenames:
        monkeypatch.chdir(request.getfixturevalue("entry"))


def named(entry: Path) -> str:
    return entry.name


def test_there_are_enough_entries() -> None:
    assert len(ENTRIES) >= 40


@pytest.mark.parametrize("entry", EDITED, ids=named)
def test_the_right_number_is_found(entry: Path) -> None:
    expected = EXPECTED[entry.name]
    site = find(entry)
    assert Path(site.path).name == Path(expected.get("file", "train.py")).name
    assert (site.line, site.text, site.kind) == (expected["line"], expected["old"], expected["kind"])
    assert site.option == expected.get("option")


@pytest.mark.parametrize("entry", EDITED, ids=named)
def test_nothing_else_changes_and_undo_restores_every_byte(entry: Path) -> None:
    expected = EXPECTED[entry.name]
    file = entry / expected.get("file", "train.py")
    before = file.read_bytes()
    source = read_source(file)
    edit = edit_site(source.text, find(entry), 48)
    after = (source.mark + edit.apply(source.text)).encode(source.encoding)

    old, new = lines(before, source.encoding), lines(after, source.encoding)
    changed = [number for number, pair in enumerate(zip(old, new, strict=True), 1) if pair[0] != pair[1]]
    assert changed == [expected["line"]]
    place = changed[0] - 1
    assert new[place] in replaced_once(old[place], expected["old"], expected["new"])
    text = edit.apply(source.text)
    assert text[: edit.start] + edit.old + text[edit.start + len(edit.new) :] == source.text


@pytest.mark.parametrize("entry", ASKED, ids=named)
def test_it_asks_where_several_may_be_meant(entry: Path) -> None:
    with pytest.raises(AmbiguousBatchSize) as caught:
        find(entry)
    assert [site.line for site in caught.value.candidates] == EXPECTED[entry.name]["ambiguous"]


@pytest.mark.parametrize("entry", [entry for entry in ENTRIES if "none" in EXPECTED[entry.name]], ids=named)
def test_it_says_where_there_is_none(entry: Path) -> None:
    with pytest.raises(BatchError, match="no batch size found in"):
        find(entry)


def lines(content: bytes, encoding: str) -> list[str]:
    return content.decode(encoding).splitlines(keepends=True)


def replaced_once(line: str, old: str, new: str) -> list[str]:
    """The line with one occurrence replaced, for each that there is."""
    places = [place for place in range(len(line)) if line.startswith(old, place)]
    return [line[:place] + new + line[place + len(old) :] for place in places]
