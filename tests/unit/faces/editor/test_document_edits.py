"""The right number changes or nothing does: random edits, line ends, encodings, stale buffers.

    STEPSCOPE_EDITS=10000 scripts/test tests/unit/faces/editor/test_document_edits.py

makes ten thousand random edits; by default it is a few hundred.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from lsprotocol import types as lsp
from pygls.workspace import PositionCodec
from reference_client import Buffer, Client, apply, to_units

from stepscope.faces.editor.text_document import Document, split_lines

EDITS = int(os.environ.get("STEPSCOPE_EDITS", "400"))
BREAKS = ["\n", "\r\n", "\r"]
ODD = ["\x0c", "\x0b", "\u2028", "\u2029", "\x85", "\x1c", "é", "😀", "\t", " ", "a", "32"]
PYTHON = [
    "import torch",
    "",
    "class Net:",
    "    size = 3",
    "data = object()",
    "loader = torch.utils.data.DataLoader(data, batch_size=32)",
    "for x in loader:",
    "    pass",
    "",
]
READS = [
    "import torch, yaml",
    "config = open('{name}')",
    "loader = DataLoader(data, batch_size=config['batch_size'])",
    "",
]
SETTINGS = {
    "conf.yaml": [
        "# settings",
        "name: a  # old",
        "train:",
        "  epochs: 3",
        "  batch_size: 32",
        "note: |",
        "  batch_size: 7 is too few",
        "last: 1",
        "",
    ],
    "conf.json": [
        "{",
        '  "name": "a",',
        '  "train": {',
        '    "epochs": 3,',
        '    "batch_size": 32',
        "  },",
        '  "last": 1',
        "}",
        "",
    ],
    "conf.toml": [
        'name = "a"',
        "[train]",
        "epochs = 3",
        "batch_size = 32  # per device",
        "[last]",
        "note = '''",
        "batch_size = 7'''",
        "",
    ],
}
NUMBER = re.compile(r"(?<=_size)(\"?\s*[=:]\s*)(\d+)(?!\d| is|''')")


@pytest.mark.parametrize("kind", ["train.py", *SETTINGS])
@pytest.mark.parametrize("newline", BREAKS, ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "bom"])
def test_random_edits_change_the_number_or_nothing(
    kind: str, newline: str, mark: str, tmp_path: Path
) -> None:
    seed = f"{kind} {newline!r} {mark!r}"
    asyncio.run(session(random.Random(seed), tmp_path, kind, newline, mark, EDITS // 24))


async def session(
    choose: random.Random, folder: Path, kind: str, newline: str, mark: str, count: int
) -> None:
    """One client edits one document; after each edit the batch size is set."""
    client, entry, target = await opened(folder, kind, newline, mark)
    original, done = target.text, 0
    for number in range(count):
        event = random_edit(choose, target)
        told_late = choose.random() < 0.1
        if told_late:
            edit = await client.batch_edit(entry, 100 + number)
            client.change(target, [event])
        else:
            client.change(target, [event])
            edit = await client.batch_edit(entry, 100 + number)
        document = client.server.workspace.get_text_document(target.uri)
        assert document.source == target.text
        if "problem" in edit:  # perhaps of broken syntax, which would refuse all that follows
            client.change(target, [target.replace(0, len(target.units), original)])
            continue
        done += set_number(client, target, edit, stale=told_late)
    assert done or (kind, newline) == ("conf.toml", "\r")  # no line end in TOML


def set_number(client: Client, target: Buffer, edit: dict, stale: bool) -> bool:
    """Apply an edit as a client does, and compare with what a person would have typed."""
    before = target.text
    applied = apply(target, edit)
    if not applied:
        assert stale
        assert target.text == before
        return False
    places = [match.span(2) for match in NUMBER.finditer(before)]
    wanted = [before[:begin] + edit["newText"] + before[end:] for begin, end in places]
    assert target.text in wanted, (before, edit)
    whole = {"text": target.text}
    client.change(target, [whole])
    return True


async def opened(folder: Path, kind: str, newline: str, mark: str) -> tuple[Client, Buffer, Buffer]:
    client = Client()
    await client.start()
    script = PYTHON if kind == "train.py" else READS
    text = newline.join(script).format(name=kind)
    entry = Buffer(folder / "train.py", (mark if kind == "train.py" else "") + text)
    entry.path.write_text(entry.text, "utf-8", newline="")
    target = entry
    client.open(entry)
    if kind != "train.py":
        target = Buffer(folder / kind, mark + newline.join(SETTINGS[kind]))
        target.path.write_text("batch_size: 1\n")  # what is on disk is older
        client.open(target)
    return client, entry, target


def random_edit(choose: random.Random, buffer: Buffer) -> dict:
    """Type or delete something; mostly at the ends of lines, in comments, or as new lines."""
    starts = buffer.starts()
    line = choose.randrange(len(starts))
    comment = "//" if buffer.path.suffix == ".json" else "#"
    what = choose.random()
    if what < 0.5:  # a comment before a line
        text = f"{comment} {''.join(choose.choices(ODD, k=4))}{choose.choice(BREAKS)}"
        place = starts[line]
        if place == 0 and buffer.text.startswith("\ufeff"):
            place = 1
        return buffer.replace(place, place, text if comment == "#" else choose.choice(BREAKS))
    if what < 0.7:  # an empty line of odd characters
        text = choose.choice(["\x0c", "", " "]) + choose.choice(BREAKS)
        return buffer.replace(starts[line], starts[line], text)
    if what < 0.85:  # the number itself
        spans = [match.span(2) for match in NUMBER.finditer(buffer.text)]
        if spans:
            begin, end = (len(to_units(buffer.text[:place])) for place in choose.choice(spans))
            return buffer.replace(begin, end, str(choose.randrange(1, 2000)))
    begin = choose.randrange(len(buffer.units) + 1)  # anything, anywhere, halves of pairs too
    end = min(len(buffer.units), begin + choose.randrange(3))
    if not (between(buffer.text, begin) and between(buffer.text, end)):
        begin = end = len(buffer.units)
    return buffer.replace(begin, end, choose.choice(["", *ODD, *BREAKS]))


def test_a_document_that_the_client_has_not_opened_is_not_edited(tmp_path: Path) -> None:
    async def scenario() -> None:
        client, entry, target = await opened(tmp_path, "conf.yaml", "\n", "")
        client.close(target)
        target.path.write_text("batch_size: 32\n")
        answer = await client.batch_edit(entry, 64)
        assert answer["open"] == target.uri
        assert "open that file" in answer["problem"]
        assert "newText" not in answer
        client.open(Buffer(target.path, "x: 1\nbatch_size: 48  # unsaved\n"))
        answer = await client.batch_edit(entry, 64)
        assert (answer["range"]["start"]["line"], answer["expected"]) == (1, "48")

    asyncio.run(scenario())


def test_the_drag_that_turned_50_into_3088822660040(tmp_path: Path) -> None:
    """Each step of a drag refers to the text that the one before left, saved or not."""

    async def scenario() -> str:
        client = Client()
        await client.start()
        entry = Buffer(tmp_path / "train.py", "\n".join(READS).format(name="conf.yaml"))
        entry.path.write_text(entry.text)
        target = Buffer(tmp_path / "conf.yaml", "batch_size: 50\nlr: 1\n")
        target.path.write_text(target.text)
        client.open(entry)
        client.open(target)
        for value in (308, 88, 226, 600, 40):
            edit = await client.batch_edit(entry, value)
            assert apply(target, edit)
            client.change(target, [{"text": target.text}])
        assert target.path.read_text() == "batch_size: 50\nlr: 1\n"
        return target.text

    assert asyncio.run(scenario()) == "batch_size: 40\nlr: 1\n"


def between(text: str, place: int) -> bool:
    """Whether there is a position at a code unit: there is none within a line end."""
    return to_units(text)[max(place - 1, 0) : place + 1] != [13, 10]


TEXTS = st.text(st.sampled_from(["a", "é", "😀", "\n", "\r", "\x0c", "\u2028", "\x85", "\x0b"]))


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, encoding=st.sampled_from(list(lsp.PositionEncodingKind)), data=st.data())
def test_positions_are_those_of_the_specification(text: str, encoding, data) -> None:
    codec = PositionCodec(encoding)
    document = Document("file:///x.py", source=text, version=1, position_codec=codec)
    assert "".join(document.lines) == text
    assert split_lines(text) == [line.rstrip("\r\n") for line in document.lines]
    offset = data.draw(st.integers(0, len(text)))
    if text[offset - 1 : offset + 1] != "\r\n":  # no position is between the two
        position = document.client_position_at_offset(offset)
        assert document.offset_at_position(position) == offset


@settings(max_examples=300, deadline=None)
@given(text=TEXTS, typed=TEXTS, data=st.data())
def test_incremental_changes_give_the_clients_text(text: str, typed: str, data) -> None:
    buffer = Buffer(Path("/x.py"), text)
    begin = data.draw(st.integers(0, len(buffer.units)))
    end = data.draw(st.integers(begin, len(buffer.units)))
    document = Document("file:///x.py", source=text, version=1)
    event = buffer.replace(begin, end, typed)
    span = lsp.Range(lsp.Position(**event["range"]["start"]), lsp.Position(**event["range"]["end"]))
    assume(between(text, begin) and between(text, end))
    document.apply_change(lsp.TextDocumentContentChangePartial(range=span, text=typed))
    assert document.source == buffer.text
