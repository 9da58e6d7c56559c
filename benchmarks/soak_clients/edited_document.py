"""A document that a client edits at random, with a batch size whose place the client knows."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

_PYTHON = (
    "import torch\n",
    "data = object()\n",
    "loader = torch.utils.data.DataLoader(data, batch_size={})\n",
    "for x in loader:\n",
    "    pass\n",
)
_READS = (
    "import torch, yaml\n",
    "settings = open('{name}')\n",
    "loader = torch.utils.data.DataLoader(data, batch_size=settings['batch_size'])\n",
)
_SETTINGS = {
    "yaml": ("# größer 🎉\n", "train:\n", "  batch_size: {}  # für alle\n", "last: 1\n"),
    "json": ("{{\n", '  "batch_size": {},\n', '  "note": "größer 🎉"\n', "}}\n"),
    "toml": ('name = "größer 🎉"\n', "batch_size = {}  # für alle\n"),
}
_ALLOWED = ("é", "🎉", "\t", "a", " ", "größer")
_ODD = ("\x0c", "\u2028", "\x85", "\ud83c", "\udf89", "\ufeff")  # not allowed in each format
_COMMENT_END = "\u00a0\n"


class Document:
    """Lines as the client has them; only `number_at` holds the batch size.

    Args:
        path: of the document, which need not exist.
        lines: with their ends; one of them has `{}` for the batch size.
        batch: the batch size.
    """

    def __init__(self, path: Path, lines: tuple[str, ...], batch: int) -> None:
        self.path, self.uri, self.version = path, path.as_uri(), 1
        self._lines = list(lines)
        self.batch = batch

    @property
    def text(self) -> str:
        """The whole text."""
        return self.with_batch(self.batch)

    def with_batch(self, batch: int) -> str:
        """The whole text with another batch size."""
        return "".join(line.format(batch) if self._is_code(line) else line for line in self._lines)

    @property
    def is_plain(self) -> bool:
        """Whether the format allows every character; otherwise it may have no batch size."""
        return not any(character in self.text for character in _ODD)

    @property
    def line_of_batch(self) -> int:
        """The line of the batch size, from 0."""
        return next(at for at, line in enumerate(self._lines) if "{}" in line)

    def edit(self, choose: random.Random) -> dict[str, Any]:
        """Insert or delete a comment line; the event for the server."""
        comments = [at for at, line in enumerate(self._lines) if not self._is_code(line)]
        self.version += 1
        if comments and choose.random() < 0.5:
            at = choose.choice(comments)
            del self._lines[at]
            return _event(at, at + 1, "")
        at = choose.randrange(len(self._lines) + 1)
        if self.path.suffix == ".json":
            text = choose.choice(["\n", " \t\n", "\r\n"])
        else:
            characters = choose.choices(_ALLOWED if choose.random() < 0.9 else _ODD, k=4)
            text = f"#{''.join(characters)}{_COMMENT_END}"
        self._lines.insert(at, text)
        return _event(at, at, text)

    def apply(self, edit: dict[str, Any]) -> str | None:
        """The text after an edit of the server, as an editor applies it; None if it must not."""
        if edit.get("version") != self.version or edit.get("uri") != self.uri:
            return None
        start, end = edit["range"]["start"], edit["range"]["end"]
        lines = self.text.replace("\r\n", "\n").split("\n")
        units = lines[start["line"]].encode("utf-16-le", "surrogatepass")
        old = units[2 * start["character"] : 2 * end["character"]]
        if start["line"] != end["line"] or old.decode("utf-16-le") != edit["expected"]:
            return None
        new = units[: 2 * start["character"]] + edit["newText"].encode("utf-16-le")
        new += units[2 * end["character"] :]
        lines[start["line"]] = new.decode("utf-16-le", "surrogatepass")
        return "\n".join(lines)

    def _is_code(self, line: str) -> bool:
        return not (line.startswith("#") and line.endswith(_COMMENT_END)) and bool(line.strip())


def _event(first: int, last: int, text: str) -> dict[str, Any]:
    span = {"start": {"line": first, "character": 0}, "end": {"line": last, "character": 0}}
    return {"range": span, "text": text}


def entry_and_target(folder: Path, number: int, choose: random.Random) -> list[Document]:
    """A script, and, unless the batch size is in the script itself, its settings file."""
    script = folder / f"train_{number}.py"
    kind = choose.choice(["py", *_SETTINGS])
    if kind == "py":
        return [Document(script, _PYTHON, 32)]
    name = f"settings_{number}.{kind}"
    reads = tuple(line.replace("{name}", name) for line in _READS)
    settings = Document(folder / name, _SETTINGS[kind], 32)
    settings.path.write_text("batch_size: 1\n")  # what is on disk is older; it must exist
    return [Document(script, reads, 0), settings]
