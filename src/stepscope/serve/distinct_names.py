"""Short names of device work that stay distinct: two kernels never look the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from stepscope.timeline.operation_labels import short_name

_MAX_LENGTH = 40
_WORD = re.compile(r"[A-Za-z0-9_]+")


def distinct_short_names(names: Collection[str]) -> dict[str, str]:
    """A short name for each name, in which those that would look the same say what differs.

    Example:
        >>> sorted(distinct_short_names(["void at::f<1>(int)", "void at::f<1>(long)"]).values())
        ['f<1> [int]', 'f<1> [long]']
    """
    alike: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        alike.setdefault(short_name(name), []).append(name)
    found: dict[str, str] = {}
    for short, members in alike.items():
        if len(members) == 1:
            found[members[0]] = short
        else:
            found.update(_told_apart(short, members))
    return found


def _told_apart(short: str, names: Sequence[str]) -> dict[str, str]:
    """The words of each name that not all have, or a number where this does not help."""
    words = [_WORD.findall(name) for name in names]
    common = set(words[0]).intersection(*words[1:])
    notes = [_note([word for word in own if word not in common]) for own in words]
    known = {note: notes.count(note) for note in notes}
    return {
        name: f"{short} [{note}]" if note and known[note] == 1 else f"{short} #{number}"
        for number, (name, note) in enumerate(zip(names, notes, strict=True), 1)
    }


def _note(words: Sequence[str]) -> str:
    text = " ".join(dict.fromkeys(words))
    return text if len(text) <= _MAX_LENGTH else ""
