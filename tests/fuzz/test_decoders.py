"""The compiled decoder and the oracle read every file alike: the same tables, warnings and errors.

More mutated files than in CI:

    STEPSCOPE_FUZZ_EXAMPLES=10000 python -m pytest tests/fuzz/test_decoders.py
"""

from __future__ import annotations

import gzip
import io
import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from edits import EDITS, EXAMPLES
from hypothesis import given, seed, settings
from hypothesis import strategies as st
from mutations import Edit, mutated
from oracles import trace_events as oracle
from targets import CORPUS

from stepscope.errors import StepscopeError
from stepscope.read import byte_stream
from stepscope.read.chrome import trace_events
from stepscope.read.chrome.compiled_decoder import decode_chunk
from stepscope.read.chrome.decode import Decode, EventReader
from stepscope.trace import spill
from stepscope.trace.table import Text
from stepscope.trace.trace import Trace

TRACES = Path(os.environ.get("STEPSCOPE_TRACES") or Path(__file__).parents[3] / "shared/traces")
MALFORMED = sorted((TRACES / "edge_cases/malformed").glob("*.json"))
REAL = sorted(file for file in TRACES.rglob("*.json.gz") if "execution_trace" not in file.name)
BEGINNING = 1 << 15
CHUNKS = [300, 4000, 1 << 20]


def outcome(data: bytes, decode: Decode, chunk_bytes: int = 1 << 20) -> Any:
    """What reading some data gives: the tables, or the message of the error."""
    compressed = data.startswith((byte_stream.GZIP, byte_stream.ZSTD))
    with (
        mock.patch.object(byte_stream, "CHUNK_BYTES", chunk_bytes),
        mock.patch.object(trace_events, "EventReader", partial(EventReader, decode=decode)),
    ):
        try:
            trace = trace_events.read_trace_events(io.BytesIO(data), compressed, lambda size: None)
        except StepscopeError as error:
            return str(error)
    return everything(trace)


def everything(trace: Trace) -> dict[str, Any]:
    """All that a trace holds, as values that can be compared."""
    found: dict[str, Any] = {
        f"{name}.{column}": (values.codes.tobytes(), list(values.values))
        if isinstance(values, Text)
        else values.tobytes()
        for name, table in trace.tables.items()
        for column, values in table.columns().items()
    }
    arguments = list(trace.arguments.items())
    return found | {"metadata": repr(trace.metadata), "arguments": arguments}


def assert_alike(data: bytes, decode: Decode = decode_chunk, chunk_bytes: int = 1 << 20) -> None:
    """Both decoders give the same."""
    expected = outcome(data, oracle.decode_chunk, chunk_bytes)
    found = outcome(data, decode, chunk_bytes)
    if isinstance(expected, dict) and isinstance(found, dict):
        different = [key for key in expected if expected[key] != found.get(key)]
        assert not different
    assert found == expected


@pytest.mark.skipif(not REAL, reason=f"no traces in {TRACES}")
@pytest.mark.parametrize("file", REAL, ids=lambda file: f"{file.parent.name}/{file.name}")
def test_real_traces_are_read_alike(file: Path) -> None:
    decoded: list[bool] = []

    def counted(text: bytes, size: int) -> Any:
        chunk = decode_chunk(text, size)
        decoded.append(chunk is not None)
        return chunk

    data = file.read_bytes()
    assert_alike(data, counted)
    assert decoded.count(False) <= max(1, 0.4 * len(decoded))  # ends of files


@pytest.mark.parametrize("chunk_bytes", CHUNKS)
def test_malformed_files_are_read_alike(chunk_bytes: int) -> None:
    for file in [*MALFORMED, *(CORPUS / "file").iterdir()]:
        if not file.name.endswith(".pb"):
            assert_alike(file.read_bytes(), chunk_bytes=chunk_bytes)


def beginnings() -> list[bytes]:
    """Small files to mutate: odd ones, and the first events of real ones."""
    small = [file.read_bytes() for file in [*MALFORMED, *sorted((CORPUS / "file").glob("*.json"))]]
    for file in REAL:
        with gzip.open(file) as stream:
            small.append(stream.read(BEGINNING))
    return small


BEGINNINGS = beginnings()


@seed(0)
@settings(max_examples=2 * EXAMPLES, deadline=None, database=None)
@given(data=st.sampled_from(BEGINNINGS), edits=EDITS, chunk_bytes=st.sampled_from(CHUNKS))
def test_mutated_files_are_read_alike(data: bytes, edits: list[Edit], chunk_bytes: int) -> None:
    assert_alike(mutated(data, edits), chunk_bytes=chunk_bytes)


VALUES = st.sampled_from(
    [
        "0",
        "-0",
        "1",
        "-17",
        "1.0",
        "1.5",
        "-1.25",
        "0.0001",
        "1e3",
        "1E-2",
        "1e400",
        "01",
        "+1",
        "1.",
        ".5",
        "9007199254740993",
        "123456789012345678",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "99999999999999999999",
        "9" * 200,
        "1712195495505582.988",
        "1712195495505582.9885",
        "4611686018427387.903",
        "4611686018427387.904",
        "0.1234567890123456789",
        "5.000000000000000000001",
        "null",
        "true",
        "false",
        "NaN",
        "Infinity",
        '""',
        '"X"',
        '"M"',
        '"B"',
        '"E"',
        '"i"',
        '"C"',
        '"s"',
        '"f"',
        '"7"',
        '"stream 7"',
        '"\\u0058"',
        '"\\ud83d\\ude00"',
        '"\\ud83d"',
        '"é😀"',
        '"a\\"b\\\\"',
        '"\\x"',
        '"\\u00zz"',
        '"tab\there"',
        "[]",
        "[1, [2, {}]]",
        "{}",
        '{"name": "main"}',
        '{"correlation": 5}',
        '{"correlation": "6"}',
        '{"correlation": 7.5}',
        '{"correlation": 1, "correlation": 2}',
        '{"corr\\u0065lation": 5}',
        '{"Addr": -5}',
        '{"Bytes": 512, "Addr": 18446744073709551615, "Device Type": 1}',
        '{"v": 1, "w": [1]}',
        '{"Sequence number": null, "Fwd thread id": 99999999999999999999}',
        "[1,]",
        '{"a": 1,}',
        "[" * 70 + "]" * 70,
        "[" * 5000 + "]" * 5000,
    ]
)
KEYS = st.sampled_from(
    ["ph", "name", "cat", "ts", "dur", "tdur", "pid", "tid", "id", "id2", "args", "bp", "", "p\\u0068"]
)
BLANKS = st.sampled_from(["", "", "", " ", "\n", "\t\r ", "\v", "\u00a0"])
USUAL = '"ph": "X", "name": "op", "ts": 5, "dur": 2, "pid": 1, "tid": 1'


@st.composite
def events(draw: st.DrawFn) -> str:
    """The text of an event with odd members."""
    members = draw(st.lists(st.tuples(KEYS, VALUES), max_size=4))
    blank = draw(BLANKS)
    odd = [f'"{key}"{blank}:{blank}{value}' for key, value in members]
    usual = [USUAL] if draw(st.booleans()) else []
    return "{" + f"{blank},".join(usual + odd) + "}" + blank


@seed(0)
@settings(max_examples=2 * EXAMPLES, deadline=None, database=None)
@given(texts=st.lists(events(), max_size=6), chunk_bytes=st.sampled_from(CHUNKS))
def test_odd_events_are_read_alike(texts: list[str], chunk_bytes: int) -> None:
    assert_alike(f"[{','.join(texts)}]".encode(), chunk_bytes=chunk_bytes)


def test_a_reading_with_files_for_large_arrays_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for file in sorted(TRACES.glob("edge_cases/*.json.gz")) + MALFORMED:
        data = file.read_bytes()
        expected = outcome(data, decode_chunk)
        with monkeypatch.context() as patch:
            patch.setattr(spill, "LEAST_BYTES", 1)
            assert outcome(data, decode_chunk) == expected
