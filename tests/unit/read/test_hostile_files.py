"""Files made to do harm: each is read or refused in one line, within bounds of time and memory."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import random
import re
import resource
import socket
import sqlite3
import struct
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from tiers import family
from xspaces import message

from stepscope.analyze import load_rules
from stepscope.base.input_files import content_of
from stepscope.base.watch_format import is_watched_run
from stepscope.errors import IngestError, StepscopeError
from stepscope.faces.terminal.options import mentions
from stepscope.facts.annotate import annotate
from stepscope.models.batch_size.source_files import read_source
from stepscope.models.devices.device_answer import read_prices
from stepscope.models.whatif import load_changes
from stepscope.read import is_trace, read
from stepscope.read.chrome import compiled_decoder
from stepscope.read.chrome.compiled_decoder import decode_chunk
from stepscope.read.execution_trace import read_execution_trace
from stepscope.read.flight_recorder import is_dump, read_dump
from stepscope.read.memory_snapshot.safe_pickle import load
from stepscope.read.model_json import read_model
from stepscope.read.watched_run import read_watched_run
from stepscope.trace.cache import key_of

ROUNDS = 20  # of each family; the full tier runs ten times as many
HEAD = b"\x80\x04}\x94(\x8c\x08segments\x94"
MANIFEST = json.dumps({"format": "stepscope capture", "version": 1, "outcome": "complete", "message": ""})


def outcome(path: Path) -> str:
    """What reading a file says: nothing where it is read, else one line."""
    before, spent = peak_bytes(), resource.getrusage(resource.RUSAGE_SELF).ru_utime
    try:
        read(path)
        message = ""
    except IngestError as error:
        message = str(error)
    assert "\n" not in message
    assert peak_bytes() - before < 400 << 20
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent < 10  # s of CPU, not elapsed
    return message


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


def integer(value: int) -> bytes:
    octets = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(octets)]) + octets


BLOCK = b"}rd\x00\x00\x00(" + text("size") + b"K\x01" + text("state") + text("inactive") + b"u"
SEGMENT = b"}rc\x00\x00\x00(" + text("blocks") + b"](" + BLOCK + b"hd" * 20_000 + b"eu"
COLLIDING = b"".join(integer(number * ((1 << 61) - 1)) + b"N" for number in range(1, 50_000))
LONG_NAME = b"X" + struct.pack("<I", 8 << 20) + b"a" * (8 << 20) + b"rj\x00\x00\x00"
FRAMES = b"".join(
    b"}(" + text("name") + (b"hj" if row else LONG_NAME) + text("line") + b"M" + struct.pack("<H", row) + b"u"
    for row in range(20_000)
)
PICKLES = {
    "a list of blocks repeated by reference": b"](" + SEGMENT + b"hc" * 20_000 + b"e",
    "keys that collide": b"}(" + COLLIDING + b"u",
    "lists that never end": b"(" * 3_000_000,
    "values that wait": b"N" + b"2" * 3_000_000,
    "a number of 20 MB": b"\x8b" + struct.pack("<i", 20 << 20) + b"\x7f" * (20 << 20),
    "a text of 20 MB": b"X" + struct.pack("<I", 20 << 20) + b"a" * (20 << 20),
    "a tuple of tuples as a key": b"}(" + b")" + b"\x85" * 200_000 + b"Nu",
    "lists in lists": b"]" * 500_000 + b"a" * 499_999,
}


@pytest.mark.parametrize("name", family(PICKLES, 4, every=2))
def test_a_snapshot_made_to_do_harm_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HEAD + PICKLES[name] + b"u.")
    assert outcome(path)


@pytest.mark.parametrize("devices", [range(300), [1 << 31]])
def test_a_snapshot_of_devices_that_nothing_has_is_refused(devices: Sequence[int], tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    segments = [{"device": device, "address": 0, "total_size": 1, "blocks": []} for device in devices]
    path.write_bytes(pickle.dumps({"segments": segments, "device_traces": []}, protocol=4))
    assert "devices" in outcome(path)


def test_histories_of_thousands_of_devices_are_refused(tmp_path: Path) -> None:
    event = {"action": "alloc", "addr": 512, "size": 512, "stream": 0, "frames": []}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[event.copy()] for _ in range(3000)]}))
    assert "3,000 devices" in outcome(path)


def test_a_profile_of_thousands_of_planes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(b"\n\x0b\x12\x09/host:CPU" + b"\n\0" * 20_000)
    assert "planes" in outcome(path)


def test_a_profile_of_a_million_lines_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(message((1, message((2, "/host:CPU"), *[(3, b"")] * 1_000_000))))
    assert "repeats parts" in outcome(path)


def test_a_text_that_every_event_of_a_profile_repeats_is_not_written_out(tmp_path: Path) -> None:
    note = message((1, 1), (5, b"x" * (1 << 20)))
    kinds = message((1, 7), (2, message((1, 7), (2, "op"), (5, note))))
    names = message((1, 1), (2, message((1, 1), (2, "note"))))
    line = message((2, "thread"), (3, 1000), *[(4, message((1, 7), (2, 1), (3, 5)))] * 20_000)
    path = tmp_path / "a.xplane.pb"
    path.write_bytes(message((1, message((2, "/host:CPU"), (3, line), (4, kinds), (5, names)))))
    assert outcome(path) == ""
    assert "long_arguments" in [row["code"] for row in read(path)["warnings"].rows()]


# Each way in which a file comes to stepscope: a pipe would wait for its writer, a device may never end.
WAYS_IN: dict[str, Callable[[Path], object]] = {
    "FILE": read,
    "--model": read_model,
    "--execution-trace": read_execution_trace,
    "--rules": load_rules,
    "--changes": load_changes,
    "--prices": read_prices,
    "a watched run": read_watched_run,
    "a dump": read_dump,
    "--key": content_of,
    "a script": lambda path: read_source(path).text,
    "an option": lambda path: mentions(str(path), "--json") or content_of(path),
    "the cache": lambda path: key_of(path) and None,
}


@pytest.mark.parametrize("way", WAYS_IN)
def test_a_pipe_and_a_device_are_refused_without_waiting(way: str, tmp_path: Path) -> None:
    pipe, device, listener = (tmp_path / f"{name}_0" for name in ("pipe", "device", "socket"))
    os.mkfifo(pipe)
    device.symlink_to("/dev/tty")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(listener))
        for path in (pipe, device, listener):
            with pytest.raises((StepscopeError, OSError), match="it is a pipe or a device") as refused:
                WAYS_IN[way](path)
            assert "\n" not in str(refused.value)
            assert not any(looks(path) for looks in (is_watched_run, is_dump, is_trace))


@pytest.mark.parametrize("way", ["--model", "--execution-trace", "a dump", "--key"])
def test_a_file_of_a_terabyte_that_is_a_hole_is_refused(way: str, tmp_path: Path) -> None:
    path = tmp_path / "rank_0"
    path.write_bytes(b'{"pg_config": "')
    os.truncate(path, 1 << 40)
    with pytest.raises((StepscopeError, OSError), match=r"more than|is a hole"):
        WAYS_IN[way](path)


@pytest.mark.skipif(sys.platform != "linux", reason="a file of Linux")
@pytest.mark.parametrize("way", WAYS_IN)
def test_a_file_of_the_kernel_that_waits_for_messages_is_an_empty_one(way: str) -> None:
    path = Path("/proc/kmsg")
    with suppress(StepscopeError, PermissionError):
        assert not WAYS_IN[way](path)
    assert not any(looks(path) for looks in (is_watched_run, is_dump, is_trace))


@pytest.mark.parametrize("name", ["a.json", "a.nsys-rep"])
def test_a_link_to_itself_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.symlink_to(path)
    assert "Too many levels of symbolic links" in outcome(path)


@pytest.mark.parametrize("megabytes", [20, pytest.param(60, marks=pytest.mark.full)])
def test_a_name_of_megabytes_is_cut(megabytes: int, tmp_path: Path) -> None:
    event = {"ph": "X", "name": "n" * (megabytes << 20), "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([event]))
    (name,) = read(path).events.text("name")
    assert name == "n" * (1 << 14)


def events_named(path: Path, names: Iterable[str]) -> Path:
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": n, "dur": 1, "name": name} for n, name in enumerate(names)
    ]
    path.write_text(json.dumps(events))
    return path


@pytest.mark.main
@pytest.mark.parametrize(("form", "count"), [("{:02000}", 3_000), ("mm {:020}", 100_000)])
def test_numbers_in_names_are_left_out_after_megabytes_of_names(
    form: str, count: int, tmp_path: Path
) -> None:
    trace = read(events_named(tmp_path / "a.json", map(form.format, range(count))))
    names = trace.events.text("name")
    assert (names[0], names[count - 1]) == (form.format(0), re.sub(r"\{.*", "#", form))
    assert [row["code"] for row in trace["warnings"].rows()] == ["long_names"]


@pytest.mark.parametrize("letters", family(["aBackward", "_", "n", "0", "KernelLaunch"], 2, every=2))
def test_long_names_of_one_letter_are_annotated(letters: str, tmp_path: Path) -> None:
    path = events_named(tmp_path / "a.json", [letters * (1 << 16)])
    assert outcome(path) == ""
    spent = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    annotate(read(path))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_utime - spent < 10  # s of CPU, not elapsed


def test_words_without_end_become_one_name(tmp_path: Path) -> None:
    letters = str.maketrans("0123456789", "abcdefghij")
    names = (f"{number:0250}".translate(letters) for number in range(20_000))
    trace = read(events_named(tmp_path / "a.json", names))
    assert trace.events.text("name")[19_999] == "(another name)"
    assert len(trace.events.text("name").values) < 18_000


def test_a_name_of_megabytes_in_many_frames_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(HEAD + b"](}(" + text("frames") + b"](" + FRAMES + b"eueu.")
    assert outcome(path) == ""


def test_settings_that_repeat_themselves_are_read_two_levels_deep(tmp_path: Path) -> None:
    settings: dict[str, object] = {"max": 10**30, "conf": "x" * 5000}
    for _ in range(60):
        settings = {"expandable_segments": True, "a": settings, "b": settings}
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps({"segments": [], "allocator_settings": settings}))
    assert len(repr(read(path).metadata.properties)) < 1000


OPCODES = b"NKJG\x88\x89\x8a]})(tue\x85\x86\x870122hjqr\x94\x8cXUCB\x95as.\x8b"


@pytest.mark.parametrize("first", [0, pytest.param(ROUNDS, marks=pytest.mark.full)])
def test_opcodes_at_random_are_refused(first: int) -> None:
    for seed in range(first, first * 10 or ROUNDS):
        chance = random.Random(seed)
        size = chance.choice([10, 1000, 100_000])
        common = bytes(chance.choices(OPCODES, k=4))  # some opcodes prevail, so that lists become deep
        opcodes = bytes(chance.choice(common if chance.random() < 0.9 else OPCODES) for _ in range(size))
        with suppress(IngestError):
            load(HEAD + opcodes + b".")


def small_export(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("pragma page_size = 512")
        connection.execute(
            "create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, streamId int,"
            " correlationId int, demangledName int)"
        )
        connection.execute("create table StringIds (id integer primary key, value text)")
        connection.executemany("insert into StringIds values (?, ?)", [(n, f"k{n}" * 9) for n in range(200)])
        kernels = [(n * 10, n * 10 + 5, 0, 7, n, n % 200) for n in range(1500)]
        connection.executemany("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?,?,?,?,?,?)", kernels)
    connection.close()


def test_pages_that_form_a_circle_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "export.sqlite"
    small_export(path)
    data = bytearray(path.read_bytes())
    for at in range(512, len(data), 512):
        if data[at] == 5:  # an inner page of a table: all of its children are the first one's
            cells = struct.unpack(">H", data[at + 3 : at + 5])[0]
            for cell in range(cells):
                place = at + struct.unpack(">H", data[at + 12 + 2 * cell : at + 14 + 2 * cell])[0]
                data[place : place + 4] = struct.pack(">I", at // 512 + 1)
    path.write_bytes(data)
    assert outcome(path)


def archive(path: Path, members: dict[str, bytes], copies: int = 1) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as capture:
        capture.writestr("manifest.json", MANIFEST)
        for number in range(copies):
            for name, content in members.items():
                capture.writestr(name.format(number), content)


@pytest.mark.main
def test_an_archive_of_many_members_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "many.stepscope"
    archive(path, {"file{}": b""}, copies=20_000)
    assert "20,001 members" in outcome(path)


@pytest.mark.parametrize("member", ["trace.json", "modules.json", "snapshot.pickle", "memory.json"])
def test_a_member_that_is_larger_than_it_says_is_not_unpacked(member: str, tmp_path: Path) -> None:
    path, content = tmp_path / "lies.stepscope", b"[" + b" " * (20 << 20) + b"]"
    archive(path, {member: content})
    path.write_bytes(path.read_bytes().replace(struct.pack("<I", len(content)), struct.pack("<I", 100)))
    assert "damaged" in outcome(path)


def test_a_long_line_that_all_samples_come_from_is_not_named_by_each(tmp_path: Path) -> None:
    path, line = tmp_path / "a.stepscope", {"function": "f", "file": "x" * (10 << 20), "line": 1}
    places = [line, *[{"function": "g", "file": "t.py", "line": 2, "called": 0}] * 20_000]
    samples = {"thread": 1, "after_ns": [0], "place": [0], "places": places}
    event = {"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
    members = {"samples.json": json.dumps(samples).encode(), "trace.json": json.dumps([event]).encode()}
    archive(path, members)
    assert "samples.json is not valid: its places have long names" in outcome(path)


@pytest.mark.main
def test_a_file_of_contexts_has_a_bounded_number_of_metrics_and_notes(tmp_path: Path) -> None:
    columns = {name: [1] for name in ("count", "sum", "min", "max", "squares")}
    metric = {"node": [0], "nesting": "inclusive", **columns}
    nodes = {"parent": [-1], "kind": [0], "name": [0]}
    contexts = {"format": "stepscope contexts", "version": 1, "strings": [""], "kinds": [""], "nodes": nodes}
    path, notes = tmp_path / "a.stepscope", {"notes": ["note"] * 10_000}
    archive(path, {"contexts.json": json.dumps({**contexts, **notes}).encode()})
    assert len(read(path)["warnings"]) == 20
    many = {"metrics": {f"metric {number}": metric for number in range(100_000)}}
    archive(path, {"contexts.json": json.dumps({**contexts, **many}).encode()})
    assert "length <= 1000" in outcome(path)


def test_many_unknown_members_are_one_warning(tmp_path: Path) -> None:
    path = tmp_path / "unknown.stepscope"
    archive(path, {"note{}.txt": b""}, copies=900)
    (warning,) = [row for row in read(path)["warnings"].rows() if row["code"] == "unread_member"]
    assert (len(warning["message"]) < 200, warning["count"]) == (True, 900)


@pytest.mark.parametrize("first", [0, pytest.param(ROUNDS, marks=pytest.mark.full)])
def test_archives_with_bytes_exchanged_are_read_or_refused(first: int, tmp_path: Path) -> None:
    path = tmp_path / "capture.stepscope"
    events = [{"ph": "X", "name": f"n{n}", "pid": 1, "tid": 1, "ts": n, "dur": 1} for n in range(200)]
    archive(path, {"trace.json": json.dumps(events).encode(), "modules.json": b"{}"})
    whole = path.read_bytes()
    for seed in range(first, first * 5 or ROUNDS):
        chance = random.Random(seed)
        data = bytearray(whole)
        for _ in range(chance.choice([1, 4, 20])):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(data)
        outcome(path)


@pytest.mark.main
@pytest.mark.parametrize(
    "name", family(["trace.json.gz", "snapshot.pickle.gz", "export.sqlite.gz"], 1, every=2)
)
def test_zeros_that_were_compressed_are_not_unpacked(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    begin = {"snapshot.pickle.gz": HEAD, "export.sqlite.gz": b"SQLite format 3\0", "trace.json.gz": b"["}[
        name
    ]
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="w", compresslevel=1) as file:
        file.write(begin)
        for _ in range(300):
            file.write((b" " if "json" in name else b"\0") * (1 << 20))
    path.write_bytes(packed.getvalue())
    assert outcome(path)


LIST, DICT = b"[", b'{"traceEvents":['


@pytest.mark.parametrize(
    ("begin", "event"),
    [
        (LIST, b"1"),
        (DICT, b"[]"),
        *(pytest.param(LIST, event, marks=pytest.mark.full(every=3)) for event in (b'{"a":1}', b"[]", b"{}")),
        *(pytest.param(DICT, event, marks=pytest.mark.full(every=3)) for event in (b'{"a":1}', b"1", b"{}")),
    ],
)
def test_a_list_of_millions_of_tiny_values_is_no_trace(begin: bytes, event: bytes, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(begin + (event + b",") * 1_000_000 + event + (b"]}" if b"{" in begin else b"]"))
    assert outcome(path)


FORMS = ["nn.Module: M_{}", "a{}b{}c{}d{}", "{}", "kernel<{}>(int)", "{:016d}"]


@pytest.mark.parametrize("form", family(FORMS, 2, every=2))
def test_names_that_count_up_are_decoded_at_once(form: str) -> None:
    names = (form.format(*[number] * 4) for number in range(98_950, 123_080))
    text = ",".join(f'{{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"{name}"}}' for name in names)
    chunk = decode_chunk(text.encode(), len(text))
    assert chunk is not None
    assert len(chunk.names) == chunk.size == 24_130


def test_names_whose_hashes_collide_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = compiled_decoder._decoded
    monkeypatch.setattr(
        compiled_decoder,
        "_decoded",
        lambda text, size, rows: decoded(text, size, rows) if rows == 1 else None,
    )
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{"ph": "X", "name": "a", "pid": 1, "tid": 1, "ts": 1, "dur": 1}] * 2))
    assert "collide" in outcome(path)


EVENT = b'{"ph":"X","name":"a","pid":1,"tid":1,"ts":1,"dur":1}'
TEXTS: dict[str, tuple[Callable[[], bytes], str]] = {  # and what is said, nothing where the event is read
    "lists that open": (lambda: b"[" + b"[" * (16 << 20), "values in 200,000 others"),
    "objects in objects": (lambda: b"[" + b'{"ph":' * 3_000_000, "values in 200,000 others"),
    "lists before the events": (
        lambda: b'{"a":[' + b"[1]," * 5_000_000 + b'1],"traceEvents":[' + EVENT + b"]}",
        "",
    ),
    "lists after the events": (
        lambda: b'{"traceEvents":[' + EVENT + b'],"a":[' + b"[1]," * 5_000_000 + b"1]}",
        "",
    ),
    "lists instead of events": (lambda: b'{"a":[' + b"[1]," * 5_000_000 + b"1]}", "found the keys a"),
    "a text without end": (lambda: b'{"a":"' + b"\\a" * (8 << 20), "text that is not JSON"),
    "a deep text without end": (
        lambda: b'[{"ph":' + b"[" * 3000 + b'"' + b"\\a" * (8 << 20),
        "inside an event",
    ),
}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="patterns keep a way back, which takes memory")
@pytest.mark.parametrize("name", family(TEXTS, 3, every=2))
def test_texts_around_events_are_bounded(name: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    text, said = TEXTS[name]
    path.write_bytes(text())
    message = outcome(path)
    assert said in message if said else not message


HEADS = {
    "json": b"[",
    "timeline.json": b"[[1,2],[",
    "pickle": HEAD,
    "pb": b"\n\x0a/host:CPU",
    "zip": b"PK\3\4",
}


@pytest.mark.parametrize("name", HEADS)
def test_a_file_of_three_gigabytes_that_are_a_hole_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{name}"
    with path.open("wb") as file:
        file.write(HEADS[name])
        file.truncate(3 << 30)
    assert outcome(path)


def test_lists_of_a_memory_timeline_have_their_length(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_bytes(b"[[1,2],[" + b"[]," * 5_000_000 + b"[]]]")
    assert "memory timeline" in outcome(path)
