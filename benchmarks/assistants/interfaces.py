"""Tool interfaces, and what a scripted client asks each of them until it can answer."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from assistants.causes import CAUSES

Ask = Callable[[str, dict[str, Any]], str]  # a tool and its arguments; the answer's text
_PLACE = re.compile(r"train\.py(?::|\(|\W+line\W+)(\d+)")


class Reading(NamedTuple):
    """What a reader makes of some text: the cause whose cue comes first, and the first line after that."""

    cause: str = ""
    line: int = 0


def read(text: str) -> Reading:
    """Read an answer, from its findings on if it has some; empty where it has no cue, 0 without a line.

    Example:
        >>> read('{"what":"ampere_sgemm takes 15% of the step in me/train.py:12"}')
        Reading(cause='single precision', line=12)
    """
    start = max(text.lower().find("findings"), 0)
    matches = [(re.compile(cause.cue, re.IGNORECASE).search(text, start), cause.name) for cause in CAUSES]
    cues = [(match.start(), name) for match, name in matches if match]
    if not cues:
        return Reading()
    at, name = min(cues)
    place = _PLACE.search(text, at)
    return Reading(name, int(place[1]) if place else 0)


class Talk:
    """What a client has asked about one recording, and what it makes of the answers."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self.calls = self.size = 0
        self.reading = Reading()

    def call(self, tool: str, **arguments: Any) -> str:
        """Ask, and read the answer: what is known already stays."""
        text = self._ask(tool, arguments)
        self.calls, self.size = self.calls + 1, self.size + len(text.encode())
        new = read(text)
        self.reading = Reading(self.reading.cause or new.cause, self.reading.line or new.line)
        return text

    @property
    def is_done(self) -> bool:
        """Whether cause and line are known, right or wrong."""
        return bool(self.reading.cause and self.reading.line)


def ask_stepscope(talk: Talk, file: Path) -> None:
    """The findings; then what else has lines."""
    for tool in ("findings", "contexts", "overview"):
        if not talk.is_done:
            talk.call(tool, file=file.name)


def ask_explain(talk: Talk, file: Path) -> None:
    """The document, once."""
    talk.call("explain", file=file.name)


_LONGEST = """
    select cat, name, count(*) as count, round(sum(dur) / 1000, 3) as ms from events
    where name not like 'ProfilerStep%' group by cat, name order by ms desc limit 25
"""
_AROUND = """
    with found as (
        select distinct caller.ts, caller.tid from events e join events caller
        on caller.rowid = e.rowid or caller.correlation = e.correlation and caller.cat = 'cuda_runtime'
        where e.name = '{name}' limit 20
    )
    select frame.name, count(*) as count, min(frame.dur) as us from found join events frame
    on frame.cat = 'python_function' and frame.tid = found.tid
    and found.ts between frame.ts and frame.ts + frame.dur group by frame.name order by us limit 5
"""


def ask_sql(talk: Talk, file: Path) -> None:
    """The names that take longest; then the Python frames around the calls of the first with a cue."""
    rows = json.loads(talk.call("query", sql=_LONGEST))
    names = [name for _, name, *_ in rows[1:] if read(name).cause]
    if names:
        place = _PLACE.search(talk.call("query", sql=_AROUND.format(name=names[0])))
        talk.reading = talk.reading._replace(line=int(place[1]) if place else 0)


def sql_of(file: Path) -> Ask:
    """Plain SQL over the events of the JSON, as any assistant can have without a profiler's help."""
    base = sqlite3.connect(":memory:")
    base.execute("create table events (name, cat, ph, pid, tid, ts, dur, correlation, args)")
    rows = [
        (*(event.get(key) for key in ("name", "cat", "ph", "pid", "tid", "ts", "dur")),
         event["args"].get("correlation"), json.dumps(event["args"]))
        for event in json.loads(file.read_text())["traceEvents"]
    ]  # fmt: skip
    base.executemany(f"insert into events values ({', '.join('?' * 9)})", rows)

    def ask(tool: str, arguments: dict[str, Any]) -> str:
        found = base.execute(arguments["sql"])
        return json.dumps([[column[0] for column in found.description], *found.fetchall()])

    return ask


def explain_of(file: Path) -> Ask:
    """`stepscope explain` of one recording."""
    from click.testing import CliRunner

    from stepscope.faces.terminal.commands import stepscope

    return lambda tool, arguments: CliRunner().invoke(stepscope, ["explain", str(file), "--no-cache"]).output


def scripted(calls: Sequence[tuple[str, dict[str, Any]]]) -> Callable[[Talk, Path], None]:
    """A client that makes given calls of any server; `{file}` in an argument is the recording."""

    def ask(talk: Talk, file: Path) -> None:
        for tool, arguments in calls:
            if not talk.is_done:
                talk.call(tool, **dict(_filled(arguments, file)))

    return ask


def _filled(arguments: dict[str, Any], file: Path) -> Iterator[tuple[str, Any]]:
    for key, value in arguments.items():
        yield key, value.replace("{file}", file.name) if isinstance(value, str) else value
