"""The work of the readers grows with the text, counted in operations rather than seconds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reading import read_text

from stepscope.read.chrome import tolerant_json
from stepscope.read.chrome.decode import ArrayFinder
from stepscope.read.chrome.event_columns import RecordColumns

GOOD = json.dumps({"ph": "X", "name": "op", "ts": 1, "dur": 1, "pid": 1, "tid": 1})


def test_keys_inside_other_objects_are_scanned_once() -> None:
    def scanned(keys: int) -> int:
        false = ",".join(f'"{key}":{{"traceEvents":[]}}' for key in range(keys))
        finder = ArrayFinder()
        text = b'{"other":{' + false.encode() + b'},"traceEvents":[]}'
        assert finder.find(text) is not None
        return finder.scanned

    assert scanned(2000) <= 10.1 * scanned(200)


def test_a_growing_text_is_scanned_once() -> None:
    text = b'{"a":[{"traceEvents":[1]},"x\\"y"], "traceEvents" : [ {"ph":1}'
    finder, found = ArrayFinder(), None
    for end in range(1, len(text)):
        found = found or finder.find(text[:end])
    assert found == ({"a": [{"traceEvents": [1]}, 'x"y']}, text.index(b" {"))
    assert finder.scanned <= 2 * len(text)


class CountingDecoder:
    """Counts the characters that decoding may read."""

    def __init__(self, decoder: json.JSONDecoder) -> None:
        self.decoder, self.calls, self.characters = decoder, 0, 0

    def raw_decode(self, text: str, position: int = 0) -> Any:
        self.calls += 1
        try:
            value, end = self.decoder.raw_decode(text, position)
        except json.JSONDecodeError as error:
            self.characters += error.pos + (error.pos - position)  # it counts lines from 0
            raise
        self.characters += end - position
        return value, end


def decoded(text: str, monkeypatch: pytest.MonkeyPatch) -> CountingDecoder:
    counter = CountingDecoder(json.JSONDecoder(strict=False))
    monkeypatch.setattr(tolerant_json, "DECODER", counter)
    read_text(text)
    return counter


@pytest.mark.parametrize("bad", ['{"ph": "X" "name": 1},\n', '{"ph": "X", "args": {"a": 1},\n'])
def test_malformed_events_cost_no_more_than_their_text(bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[" + ",\n".join((bad + GOOD) for _ in range(5000)) + "]"
    counter = decoded(text, monkeypatch)
    assert counter.calls <= 4 * 5000
    assert counter.characters <= 10 * len(text)


def test_events_that_contain_each_other_cost_no_more_than_their_text(monkeypatch: pytest.MonkeyPatch) -> None:
    bad = '{"ph": "X", "args": [\n'
    text = "[" + GOOD + "," + bad * 20_000 + ",".join([GOOD] * 100) + "]"
    assert decoded(text, monkeypatch).calls <= 2000


def test_an_event_that_nests_too_deeply_is_skipped_alone() -> None:
    deep = '{"ph": "X", "ts": 1, "args": ' + "[" * 50_000 + "]" * 50_000 + "}"
    trace = read_text('{"traceEvents": [' + ",".join([GOOD, deep, GOOD]) + '], "key": 1}')
    assert len(trace.events) == 2
    assert trace.metadata.properties == {"key": 1}
    (warning,) = trace["warnings"].rows()
    assert (warning["code"], warning["count"]) == ("malformed_event", 1)
    assert "nested too deeply" in warning["message"]


def test_counters_join_their_columns_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    column = RecordColumns.column

    def counted(self: RecordColumns, name: str) -> object:
        nonlocal calls
        calls += 1
        return column(self, name)

    monkeypatch.setattr(RecordColumns, "column", counted)
    events = [
        {"ph": "C", "name": "c", "ts": number, "pid": 1, "tid": 1, "args": {"v": number, "w": "x"}}
        for number in range(500)
    ]
    trace = read_text(json.dumps(events))
    assert trace["counters"]["value"].tolist() == list(range(500))
    assert calls < 100
