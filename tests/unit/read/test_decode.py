"""Text that is a trace, nearly one, or none at all."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from reading import array_of, event, names, read_text, tables, warnings

from stepscope.errors import IngestError
from stepscope.read import byte_stream as stream
from stepscope.read.chrome.decode import EventReader
from stepscope.read.shared import WarningLog
from stepscope.trace.arguments import Arguments
from stepscope.trace.store import save

ONE = json.dumps(event())


# -- what is no trace


_A_ALONE = "expected a top-level array `traceEvents`; found the keys a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a trace, found an empty file"),
        (" \n\t", "expected a trace, found an empty file"),
        ("\ufeff", "expected a trace, found an empty file"),
        ("17", "expected a JSON object or array, found '17'"),
        ('"traceEvents"', "expected a JSON object or array, found '\"traceEvents\"'"),
        ("<html>", "expected a JSON object or array, found '<html>'"),
        ("{}", "expected a top-level array `traceEvents`; found nothing"),
        ('{"a": 1, "b": 2}', "expected a top-level array `traceEvents`; found the keys a, b"),
        ('{"traceEvents": null}', "expected `traceEvents` to be an array, found NoneType"),
        ('{"traceEvents": {}}', "expected `traceEvents` to be an array, found dict"),
        ('{"a": {"traceEvents": [{}]}}', _A_ALONE),
        ('{"a": "\\"traceEvents\\": ["}', _A_ALONE),
        ("[]", "the file holds no readable trace event"),
        ('{"traceEvents": []}', "the file holds no readable trace event"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_line(text: str, message: str) -> None:
    with pytest.raises(IngestError) as caught:
        read_text(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000, '[{"ph":' * 50_000]
)
def test_nothing_but_brackets_is_refused(text: str) -> None:
    with pytest.raises(IngestError, match=r"expected|no readable"):
        read_text(text)


def test_an_execution_trace_is_named() -> None:
    with pytest.raises(IngestError, match="give the Kineto trace of the same run"):
        read_text('{"schema": "1.1.1", "nodes": []}')


@pytest.mark.main
def test_an_event_without_end_is_refused_before_it_fills_the_memory() -> None:
    endless = b'[{"ph": "X", "name": "' + b"x" * (1 << 20)
    chunks = iter([endless] + [b"x" * (1 << 20)] * 1000)
    with pytest.raises(IngestError, match="no event ends within 64 MiB"):
        list(EventReader(chunks, WarningLog()))
    assert len(list(chunks)) > 500


# -- where the events stand


@pytest.mark.parametrize(
    "text",
    [
        f"[{ONE}]",
        f"\ufeff[{ONE}]",
        f"\r\n[\r\n{ONE}\r\n]\r\n",
        f"[{ONE}",
        f"[{ONE},",
        f"[{ONE},]",
        f"[{ONE},\n\n",
        f'{{"traceEvents": [{ONE}]}}',
        f'\ufeff {{"traceEvents"\n:\n[{ONE}]}}',
        f'{{"traceEvents": [{ONE},]}}',
        f'{{"x": {{"traceEvents": [1]}}, "traceEvents": [{ONE}]}}',
        f'{{"x": "\\"traceEvents\\": [", "traceEvents": [{ONE}]}}',
        f'{{"x": "a }},{{ b ] }}", "traceEvents": [{ONE}], "y": [{{}}, {{}}]}}',
        f'{{"traceEvents": null, "traceEvents": [{ONE}]}}',
    ],
)
def test_the_events_are_found_without_a_warning(text: str) -> None:
    trace = read_text(text)
    assert names(trace) == ["mm"]
    assert warnings(trace) == {}


def test_properties_before_and_after_the_events_are_kept() -> None:
    trace = read_text(f'{{"schemaVersion": 1, "traceEvents": [{ONE}], "world": {{"size": 8}}}}')
    assert trace.metadata.properties == {"schemaVersion": 1, "world": {"size": 8}}
    assert trace.metadata.framework == "pytorch"


def test_the_events_of_a_repeated_key_all_count() -> None:
    arrays = [json.dumps([event(name, ts)]) for ts, name in enumerate("abc")]
    trace = read_text("{" + ", ".join(f'"traceEvents": {array}' for array in arrays) + "}")
    assert names(trace) == ["a", "b", "c"]


@pytest.mark.parametrize("size", [1, 7, 64, 1 << 20])
@pytest.mark.parametrize("counts", [[1, 1], [3, 1, 2], [1, 40, 1, 40]])
@pytest.mark.parametrize("head", ['"displayTimeUnit":"us",', ""])
def test_the_events_of_objects_in_a_row_all_count(size: int, counts: list[int], head: str) -> None:
    """Triton's Proton writes one for each stream of a device; in pieces of any size."""
    streams = [[f"{stream}_{number}" for number in range(count)] for stream, count in enumerate(counts)]
    arrays = (json.dumps([event(name) for name in stream]) for stream in streams)
    text = "".join(f'{{{head}"traceEvents":{array}}}\n' for array in arrays).encode()
    log = WarningLog()
    chunks = EventReader((text[at : at + size] for at in range(0, len(text), size)), log)
    found = [chunk.names[code] for chunk in chunks for code in chunk.name]
    assert (found, log.rows()) == ([name for stream in streams for name in stream], [])


def test_of_other_repeated_keys_the_last_counts() -> None:
    assert names(read_text('[{"ph": "X", "name": "a", "name": "b", "ts": 1, "dur": 1}]')) == ["b"]


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        (f'{{"traceEvents": [{ONE}', "truncated_file"),
        (f'{{"traceEvents": [{ONE},', "truncated_file"),
        (f'[{ONE}, {{"ph": "X", "na', "truncated_event"),
        (f"[{ONE}] [{ONE}]", "trailing_text"),
        (f'{{"traceEvents": [{ONE}]}} junk', "malformed_trailer"),
        (f'{{"traceEvents": [{ONE}], "devi', "malformed_trailer"),
    ],
)
def test_a_trace_cut_short_or_gone_on_is_read_with_a_warning(text: str, warning: str) -> None:
    trace = read_text(text)
    assert names(trace) == ["mm"]
    assert warnings(trace).keys() == {warning}


# -- events that are not quite JSON


@pytest.mark.parametrize(
    ("text", "warning"),
    [
        ("null", "not_an_event"),
        ("17", "not_an_event"),
        ("[]", "not_an_event"),
        ('["nested", {"ph": "X"}]', "not_an_event"),
        ("{}", "bad_timestamp"),
        ("{'ph': 'X'}", "malformed_event"),
        ('{"ph": "X", "name": "a', "malformed_event"),
        ('{"ph": "X", "ts": 1 "dur": 2}', "malformed_event"),
        ('{"ph": "X", "args": {"a": [{"b": }, {"c": 1}, {"d": 2}]}}', "malformed_event"),
        ('{"ph": "X", "args": [{"x": 1}, {"y": 2}]]}', "malformed_event"),
        ('{"args": ' + "[" * 100_000 + "]" * 100_000 + "}", "malformed_event"),
    ],
)
def test_what_is_no_event_is_counted_and_the_rest_is_read(text: str, warning: str) -> None:
    trace = read_text(array_of(text))
    assert names(trace) == ["first", "last"]
    assert warnings(trace) == {warning: 1}


def test_a_brace_too_many_is_counted_and_no_event_is_lost() -> None:
    trace = read_text(array_of(ONE + "}"))
    assert names(trace) == ["first", "mm", "last"]
    assert warnings(trace) == {"malformed_event": 1}


def test_the_warning_says_where() -> None:
    trace = read_text("[" + ONE + ",\n" + '{"é": oops},' + ONE + "]")
    (row,) = trace["warnings"].rows()
    assert f"at byte {len(ONE) + 3}" in row["message"]
    assert '\'{"é": oops}' in row["message"]


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ('"a\nb\tc\u0001"', "a\nb\tc\u0001"),
        ('"\\ud83d\\ude00"', "😀"),
        ('"},{"', "},{"),
        ('"]}"', "]}"),
        ('"\\"}, {\\"ph\\": \\"X\\""', '"}, {"ph": "X"'),
        ("5", "5"),
        ("1.50", "1.50"),
        ("true", "true"),
        ("null", ""),
        ('["a"]', '["a"]'),
    ],
)
def test_a_name_is_text_whatever_is_written(name: str, read: str) -> None:
    trace = read_text(array_of(f'{{"ph": "X", "ts": 1, "dur": 1, "name": {name}}}'))
    assert names(trace) == ["first", read, "last"]
    assert warnings(trace) == {}


@pytest.mark.parametrize("name", [rb"a\ud800b", b"a\xffb"])
def test_what_is_not_unicode_is_replaced_and_told(name: bytes) -> None:
    text = array_of('{"ph": "X", "ts": 1, "dur": 1, "name": "NAME", "args": {"NAME": "NAME"}}')
    trace = read_text(text.encode().replace(b"NAME", name))
    assert names(trace) == ["first", "a�b", "last"]
    assert trace.event_arguments(1) == {"a�b": "a�b"}
    assert warnings(trace) == {"invalid_text": 2}


@pytest.mark.parametrize(
    ("args", "read"),
    [
        ("null", {}),
        ("{}", {}),
        ('{"a": NaN}', {"a": pytest.approx(float("nan"), nan_ok=True)}),
        ('{"a": -Infinity}', {"a": float("-inf")}),
        ('{"a": 1e400}', {"a": float("inf")}),
        ('{"a": [{}, {}]}', {"a": [{}, {}]}),
        ('{"a": [{"ph": "X"}, {"ph": "X"}]}', {"a": [{"ph": "X"}, {"ph": "X"}]}),
        ("[1, 2]", {"value": [1, 2]}),
        ('"text"', {"value": "text"}),
        ('{"a": 1, "a": 2}', {"a": 2}),
        ('{"Addr": 18446744073709551615}', {"Addr": 2**64 - 1}),
        (
            '{"correlation": "7", "stream": 7.0, "Bytes": null}',
            {"correlation": "7", "stream": 7.0, "Bytes": None},
        ),
    ],
)
def test_arguments_are_kept_as_recorded(args: str, read: object) -> None:
    trace = read_text(array_of(f'{{"ph": "X", "ts": 1, "dur": 1, "args": {args}}}'))
    assert trace.event_arguments(1) == read
    assert warnings(trace) == {}


def test_arguments_that_nothing_can_parse_are_shown_as_text() -> None:
    digits = "9" * 5000
    trace = read_text(array_of(f'{{"ph": "X", "ts": 1, "dur": 1, "args": {{"a": {digits}}}}}'))
    assert trace.event_arguments(1) == {"value": f'{{"a": {digits}}}'}


def test_one_odd_argument_does_not_spoil_the_others_columns() -> None:
    odd = json.dumps(event(args={"correlation": {"x": 1}}))
    good = json.dumps(event(args={"correlation": 7, "Sequence number": "8"}))
    trace = read_text(f"[{odd}, {good}]")
    assert trace.events["correlation"].tolist() == [-1, 7]
    assert trace.events["sequence"].tolist() == [-1, 8]


@pytest.mark.parametrize(
    ("pid", "read"),
    [
        ("1", "1"),
        ("-1", "-1"),
        ('"gpu"', "gpu"),
        ("1.0", "1"),
        ("1.5", "1.5"),
        ("null", "None"),
        ("99999999999999999999", "99999999999999999999"),
        ("[1]", "[1]"),
    ],
)
def test_a_process_may_be_anything(pid: str, read: str) -> None:
    trace = read_text(f'[{{"ph": "X", "ts": 1, "dur": 1, "pid": {pid}, "tid": 0}}]')
    assert list(trace["tracks"].text("process")) == [read]


def test_a_process_is_the_same_however_its_number_is_written() -> None:
    written = [f'{{"ph": "X", "ts": 1, "dur": 1, "pid": {pid}}}' for pid in ("7", "7.0", "7e0")]
    assert len(read_text(f"[{', '.join(written)}]")["tracks"]) == 1


@pytest.mark.parametrize("oddity", ["", ', "odd": NaN', ', "odd": "\t"'])
def test_nanoseconds_survive_however_the_event_is_read(oddity: str) -> None:
    stamps = ["1712195495505582.988", "1712195495505582.989", "1712195495505583"]
    events = (f'{{"ph": "X", "dur": 0.001, "ts": {stamp}{oddity}}}' for stamp in stamps)
    trace = read_text(f"[{', '.join(events)}]")
    assert trace.events["start_ns"].tolist() == [0, 1, 12]
    assert trace.metadata.origin_ns == 1712195495505582988


# -- where chunks end


NASTY = (
    '\ufeff{"a": "\\"traceEvents\\": [", "b": [{}, {}], "traceEvents": [\r\n'
    '{"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "main é"}},'
    '{"ph": "X", "name": "a},{b", "tid": 1, "ts": 1.001, "dur": 9, "args": {"x": [{},{}]}},'
    '{"ph": "X", "name": "ctl\t", "pid": 1, "tid": 1, "ts": 2, "dur": NaN},'
    '{"ph": "X", "name": "bro}ken", "pid": 1, "ts": 1 1},'
    '{"ph": "B", "name": "ü]}", "pid": 1, "tid": 1, "ts": 3}, null,\n'
    '{"ph": "E", "name": "ü]}", "pid": 1, "tid": 1, "ts": "4"},'
    '{"ph": "s", "id": 1, "pid": 1, "tid": 1, "ts": 3},'
    '{"ph": "f", "id": "1", "pid": 1, "tid": 1, "ts": 4},'
    '{"ph": "C", "name": "n", "pid": 1, "ts": 5, "args": {"v": 1.5}}\n], "z": {"k": [true]}}\n'
)


@pytest.mark.parametrize("size", [*range(1, 40), 64, 100, 333])
def test_where_a_chunk_ends_does_not_matter(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    whole = read_text(NASTY)
    monkeypatch.setattr(stream, "CHUNK_BYTES", size)
    assert repr(tables(read_text(NASTY))) == repr(tables(whole))


def parsed(reader: EventReader) -> list[tuple[Any, ...]]:
    """Each event: its place, name, time, duration and arguments."""
    found = []
    for chunk in reader:
        arguments = dict(Arguments(tuple(chunk.arguments)).items())
        found += [(label.place, label.name, json.loads(label.arguments)) for label in chunk.labels]
        columns = zip(
            chunk.source.tolist(),
            chunk.place.tolist(),
            chunk.name.tolist(),
            *(chunk.numbers[name].tolist() for name in ("time_ns", "duration_us")),
            strict=True,
        )
        found += [
            (
                chunk.places[place],
                chunk.names[name],
                time,
                str(duration),
                json.loads(arguments.get(source, b"null")),
            )
            for source, place, name, time, duration in columns
        ]
    return found


@pytest.mark.main
def test_two_chunks_at_every_place() -> None:
    data = NASTY.encode()
    expected = parsed(EventReader(iter([data]), WarningLog()))
    for cut in range(1, len(data)):
        log = WarningLog()
        parts = EventReader(iter([data[:cut], data[cut:]]), log)
        assert parsed(parts) == expected, cut
        assert [code for code, _, _ in log.rows()] == ["malformed_event", "not_an_event"]
        assert parts.properties == {"a": '"traceEvents": [', "b": [{}, {}], "z": {"k": [True]}}


def test_an_event_longer_than_many_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    long = json.dumps(event("long", args={"code": "for x in y: {a}, {b}\n" * 10_000}))
    assert names(read_text(array_of(long))) == ["first", "long", "last"]


def test_a_long_event_is_not_read_again_with_every_chunk() -> None:
    """The work grows with the size of an event, not with its square."""
    text = f'[{{"ph": "X", "ts": 1, "dur": 1, "name": "{"x" * 1_000_000}"}}]'.encode()
    looked_at = 0

    class Counting(EventReader):
        def _take(self, text, last):  # type: ignore[no-untyped-def]
            nonlocal looked_at
            looked_at += len(text)
            return super()._take(text, last)

    chunks = iter(text[start : start + 1000] for start in range(0, len(text), 1000))
    (name,) = [name for chunk in Counting(chunks, WarningLog()) for name in chunk.names]
    assert len(name) == 1_000_000
    assert looked_at < 4 * len(text)


def test_a_header_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "CHUNK_BYTES", 1000)
    header = {"devices": [{"name": f"gpu {number}"} for number in range(1000)]}
    text = json.dumps({**header, "traceEvents": [event()]})
    assert read_text(text).metadata.properties == header


def test_progress_adds_up_to_the_file() -> None:
    data, seen = NASTY.encode(), []
    list(stream.chunks(io.BytesIO(data), False, WarningLog(), seen.append))
    assert sum(seen) == len(data)


@pytest.mark.parametrize("levels", [200, 900, 5000])
@pytest.mark.parametrize("form", ['{"m":%s,"traceEvents":[%s]}', '{"\\ud800":%s,"traceEvents":[%s]}'])
def test_metadata_that_nests_deeply_costs_no_event(levels: int, form: str, tmp_path: Path) -> None:
    deep = '{"a":' * levels + "1" + "}" * levels
    trace = read_text(form % (deep, json.dumps(event())))
    assert names(trace) == ["mm"]
    assert [row["code"] for row in trace["warnings"].rows()] == ["deep_metadata"]
    save(trace, tmp_path / "stored")
