"""A Markdown document that fits a token budget: the most valuable facts, and what was left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

BYTES_PER_TOKEN = 3  # of UTF-8; tokenizers need one token for 3 to 4 bytes of English and of names
_FIRST_ROWS = 3  # of each section, before any section gets more; chosen: the largest of each kind
_WIDEST = 90  # characters of a name; templates of kernels run to thousands


@dataclass(frozen=True)
class Section:
    """Rows of one kind, the most valuable first.

    Attributes:
        title: what the rows are, such as `findings`.
        rows: Markdown, each of one or more lines.
        command: shows all of them; FILE is the file of the document.
        total: number of rows that exist, if `rows` has not all of them.
    """

    title: str
    rows: Sequence[str]
    command: str
    total: int = 0

    @property
    def count(self) -> int:
        """Number of rows that exist."""
        return max(self.total, len(self.rows))

    def text(self, rows: int) -> str:
        """The section with its first rows; empty without one."""
        return "\n".join([f"\n## {self.title.capitalize()}", *self.rows[:rows]]) if rows else ""


def tokens(text: str) -> int:
    """An upper estimate of the tokens of a text: one for each 3 bytes of UTF-8.

    Example:
        >>> tokens("aten::mm")
        3
    """
    return ceil(len(text.encode("utf-8", "replace")) / BYTES_PER_TOKEN)


def fitted(head: str, sections: Sequence[Section], most_tokens: int) -> str:
    """The head and as many rows of the sections as a budget has room for.

    Args:
        head: the first lines, which are always there.
        sections: the most valuable first; each gets its first rows before any gets more.
        most_tokens: as `tokens` counts them.
    """
    sections = [section for section in sections if section.rows]
    shown = [0] * len(sections)
    room = most_tokens * BYTES_PER_TOKEN - _size(head) - _size(_left_out(sections, shown))
    for most in (_FIRST_ROWS, None):
        for number, section in enumerate(sections):
            for row in range(shown[number], len(section.rows[:most])):
                cost = _size(section.text(row + 1)) - _size(section.text(row))
                if cost > room:
                    break
                shown[number], room = row + 1, room - cost
    parts = [section.text(rows) for section, rows in zip(sections, shown, strict=True)]
    return "\n".join(filter(None, [head, *parts, _left_out(sections, shown)]))


def _size(text: str) -> int:
    """Bytes of a part with the line end after it."""
    return len(text.encode("utf-8", "replace")) + 1 if text else 0


def _left_out(sections: Sequence[Section], shown: Sequence[int]) -> str:
    """What a reader does not see, and the commands that show it; empty if that is nothing."""
    missing = [
        f"- {section.count - rows} of {section.count} {section.title}: `{section.command}`"
        for section, rows in zip(sections, shown, strict=True)
        if rows < section.count
    ]
    return "\n".join(["\n## Left out", *missing]) if missing else ""


def code(name: str) -> str:
    """A recorded name as code: on one line, shortened, and unable to end its own quotation.

    Example:
        >>> code("a `b`")
        "`a 'b'`"
    """
    plain = one_line(name).replace("`", "'")
    return f"`{plain if len(plain) <= _WIDEST else plain[: _WIDEST - 1] + '…'}`"


def one_line(text: str) -> str:
    """A text that quotes names, without line ends and control characters: it cannot add a heading."""
    return "".join(char if char.isprintable() else " " for char in text)
