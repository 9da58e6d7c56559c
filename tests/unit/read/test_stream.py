"""Compressed traces, whole and damaged."""

from __future__ import annotations

import gzip
import json
import threading
import zlib
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path

import pyarrow as pa
import pytest
from reading import event, names, packed, read_gzip, read_text, warnings

from stepscope.errors import IngestError
from stepscope.read import byte_stream as stream
from stepscope.read.chrome.decode import EventReader
from stepscope.read.shared import WarningLog

EVENTS = [event(f"event {number}", number, args={"n": number}) for number in range(2000)]


def test_gzip_is_read() -> None:
    assert len(read_gzip(packed(*EVENTS)).events) == len(EVENTS)


def test_several_members_are_one_text() -> None:
    text = json.dumps(EVENTS).encode()
    members = [gzip.compress(text[at : at + 10_000]) for at in range(0, len(text), 10_000)]
    trace = read_gzip(b"".join(members))
    assert len(trace.events) == len(EVENTS)
    assert warnings(trace) == {}


def test_padding_after_the_last_member_is_harmless() -> None:
    assert warnings(read_gzip(packed(*EVENTS) + bytes(1000))) == {}


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 0.999])
def test_a_truncated_file_gives_what_it_still_holds(share: float) -> None:
    data = packed(*EVENTS)
    trace = read_gzip(data[: int(len(data) * share)])
    kept = len(trace.events)
    assert names(trace) == [one["name"] for one in EVENTS[:kept]]
    assert kept > share * len(EVENTS) * 0.8 - 50
    assert "truncated_gzip" in warnings(trace)


def test_wherever_a_file_is_cut_the_answer_is_clear() -> None:
    data = packed(*EVENTS[:20])
    outcomes = [outcome(data[:cut]) for cut in range(len(data))]
    assert set(outcomes) == {"refused", "truncated_gzip"}


def outcome(data: bytes) -> str:
    try:
        return next(iter(warnings(read_gzip(data)).keys() & {"truncated_gzip"}), "no warning")
    except IngestError:
        return "refused"


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_a_damaged_file_is_read_up_to_the_damage(share: float) -> None:
    data = bytearray(packed(*EVENTS))
    place = int(len(data) * share)
    data[place : place + 50] = b"\xff" * 50
    trace = read_gzip(bytes(data))
    read = set(zip(names(trace), trace.events["start_ns"] + trace.metadata.origin_ns, strict=True))
    kept = [one for one in EVENTS if (one["name"], one["ts"] * 1000) in read]
    assert len(kept) > share * len(EVENTS) * 0.8 - 100
    assert warnings(trace).keys() & {"damaged_gzip", "truncated_gzip"}


def test_a_wrong_checksum_loses_no_event() -> None:
    data = bytearray(packed(*EVENTS))
    data[-8] ^= 1
    trace = read_gzip(bytes(data))
    assert len(trace.events) == len(EVENTS)
    assert warnings(trace) == {"damaged_gzip": 1}


@pytest.mark.parametrize("size", [1, 300, 1 << 20])
def test_zstd_data_are_read_up_to_their_damage_in_pieces_of_any_size(size: int) -> None:
    """The second frame is damaged: a piece that reaches into it has the end of the first one."""
    content = json.dumps(EVENTS).encode()
    file = BytesIO(pa.compress(content, "zstd", asbytes=True) + b"no frame at all")
    found: list[bytes] = []
    with pytest.raises(OSError, match="ZSTD"):
        found.extend(stream._zstd_pieces(file, size))
    assert b"".join(found) == content


@pytest.mark.parametrize("data", [b"", b"\x1f\x8b", b"\x1f\x8b\x08", b"\x1f\x8b\xff\xff\xff"])
def test_no_content_is_an_empty_file(data: bytes) -> None:
    with pytest.raises(IngestError, match="empty file"):
        read_gzip(data)


def zeros(mebibytes: int) -> Iterator[bytes]:
    """A gzip file of blanks a thousand times its own size."""
    engine = zlib.compressobj(9, wbits=31)
    for _ in range(mebibytes):
        yield engine.compress(b" " * (1 << 20))
    yield engine.flush()


def test_what_inflates_to_very_much_comes_in_bounded_pieces(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(b"".join(zeros(64)))
    with path.open("rb") as file:
        sizes = [len(piece) for piece in stream.chunks(file, True, WarningLog(), lambda size: None)]
    assert sum(sizes) == 64 << 20
    assert max(sizes) <= 2 * stream.CHUNK_BYTES


def test_what_inflates_to_nothing_but_blanks_is_not_read_to_its_end() -> None:
    pieces = iter([b" " * (1 << 20)] * 1000)
    with pytest.raises(IngestError, match="empty file"):
        list(EventReader(pieces, WarningLog()))
    assert len(list(pieces)) > 500


def test_an_error_leaves_no_thread_behind() -> None:
    """One that the garbage collector ended while another was being started hung both."""
    with pytest.raises(IngestError) as caught:
        read_text("<html>" + " " * 3 * stream.CHUNK_BYTES)
    assert caught.value.__traceback__ is not None  # which would keep what it was reading alive
    assert not [one for one in threading.enumerate() if one.name.startswith("stepscope-read")]


@pytest.mark.main
def test_a_file_that_expands_as_no_recording_does_is_refused() -> None:
    bomb = gzip.compress(b"[" + b" " * (160 << 20), 6)
    with pytest.raises(IngestError, match="expand more than 200-fold"):
        read_gzip(bomb)
