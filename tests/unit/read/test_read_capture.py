from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from captures import EVENT, MANIFEST, MODULES, TRACE, write_capture

from stepscope.errors import IngestError
from stepscope.read import read
from stepscope.read.recorded import capture_file as capture
from stepscope.trace.trace import clock_of

PART = {"median_ns": 2, "cpu_ns": 2, "p10_ns": "1", "p90_ns": 3}
ODD_PARTS = {"count": 9, "median_ns": 2, "p10_ns": 1, "p90_ns": 3, "parts": {"forward": PART}}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.stepscope"


def warnings(path: Path) -> list[tuple[Any, ...]]:
    return [(row["code"], row["message"]) for row in read(path)["warnings"].rows()]


def test_a_capture_is_a_trace_with_its_manifest_and_model(path: Path) -> None:
    trace = read(write_capture(path))
    assert list(trace.events.text("name")) == ["aten::mm"]
    assert trace.metadata.capture == MANIFEST
    assert trace.metadata.model == MODULES
    assert trace.metadata.format == "stepscope capture"
    assert (trace.metadata.framework, trace.metadata.framework_version) == ("pytorch", "2.13.0")
    assert trace.metadata.devices == (MANIFEST["devices"][0],)
    assert warnings(path) == []


def test_the_rank_is_the_manifest_s_everywhere(path: Path) -> None:
    trace = read(write_capture(path, {**MANIFEST, "rank": 3, "world_size": 8}))
    assert (trace.metadata.ranks, trace.metadata.world_size) == ((3,), 8)
    assert trace["tracks"]["rank"].tolist() == [3]


def test_nothing_recorded_opens_and_says_what_happened(path: Path) -> None:
    manifest = {**MANIFEST, "outcome": "no_steps", "message": "no optimizer ever stepped"}
    write_capture(path, manifest, trace=None)
    assert len(read(path).events) == 0
    assert warnings(path) == [
        ("nothing_recorded", "the recording ended as `no_steps`: no optimizer ever stepped")
    ]


CONTEXTS = """{"format": "stepscope contexts", "version": 1, "strings": [""], "kinds": ["root"],
               "nodes": {"parent": [-1], "kind": [0], "name": [0]}}"""


def test_a_capture_of_contexts_opens_without_events(path: Path) -> None:
    manifest = {**MANIFEST, "contains": ["contexts"]}
    trace = read(write_capture(path, manifest, trace=None, **{"contexts.json": CONTEXTS}))
    assert (len(trace.events), warnings(path)) == (0, [])
    assert trace.metadata.capture["contains"] == ["contexts"]


def test_contexts_of_a_run_that_still_goes_on_say_so(path: Path) -> None:
    manifest = {**MANIFEST, "outcome": "running", "message": "the run went on after this"}
    write_capture(path, manifest, trace=None, **{"contexts.json": CONTEXTS})
    assert [code for code, _ in warnings(path)] == ["running"]


def test_a_run_that_raised_says_so(path: Path) -> None:
    write_capture(path, {**MANIFEST, "outcome": "raised", "message": "ValueError in step 6"})
    assert warnings(path) == [("raised", "the recording ended as `raised`: ValueError in step 6")]


def test_warnings_and_members_beside_are_told(path: Path) -> None:
    write_capture(path, {**MANIFEST, "warnings": ["two models"]}, notes="hello")
    assert warnings(path) == [
        ("capture", "two models"),
        ("unread_member", "skipped notes of the capture: unknown member"),
    ]


def test_compiled_graphs_are_kept_and_other_forms_refused(path: Path) -> None:
    node = {"name": "y", "target": "linear", "path": "up", "elements": 8, "operations": 64, "reads": [0]}
    program = {"key": None, "backward": False, "code": "def call(self, args):"}
    graph = {"region": "0/0", "base": "", "inputs": ["up"], "nodes": [node], "programs": [program]}
    compiled = {"version": 1, "graphs": [graph]}
    trace = read(write_capture(path, **{"compiled.json": json.dumps(compiled)}))
    assert trace.metadata.properties["compiled"] == {"graphs": [graph]}
    for damaged in ({"reads": [1]}, {"reads": [-1]}, {"elements": "many"}):
        graph["nodes"] = [{**node, **damaged}]
        write_capture(path, **{"compiled.json": json.dumps(compiled)})
        with pytest.raises(IngestError, match=r"compiled\.json is not valid"):
            read(path)


SAMPLES: dict[str, Any] = {
    "version": 1,
    "thread": 1,
    "since_unix_ns": 2000,
    "after_ns": [0, 1000],
    "place": [1, 0],
    "places": [
        {"function": "main", "file": "/train.py", "line": 3},
        {"function": "<module>", "file": "/train.py", "line": 9},
    ],
}


MAIN = "main (/train.py:3)"


def test_samples_are_instants_of_their_thread(path: Path) -> None:
    trace = read(write_capture(path, **{"samples.json": json.dumps(SAMPLES)}))
    samples = trace["instants"]
    assert list(samples.text("name")) == ["<module> (/train.py:9)", "main (/train.py:3)"]
    assert (samples["time_ns"] + clock_of(trace.metadata)).tolist() == [2000, 3000]
    assert trace["tracks"].text("thread")[int(samples["track"][0])] == "1"


def test_the_lines_of_other_threads_are_kept(path: Path) -> None:
    others = [{"function": "poll", "file": "/train.py", "line": 7}]
    trace = read(write_capture(path, **{"samples.json": json.dumps({**SAMPLES, "others": others})}))
    assert trace.metadata.capture["others"] == ["poll (/train.py:7)"]


def test_the_name_of_a_sample_has_the_lines_that_call_it(path: Path) -> None:
    main, module = SAMPLES["places"]
    for called, name in ((1, "main (/train.py:3) ← <module> (/train.py:9)"), (0, " ← ".join([MAIN] * 32))):
        text = json.dumps(
            {**SAMPLES, "places": [{**main, "called": called}, module]}
        )  # the second is a circle
        samples = read(write_capture(path, **{"samples.json": text}))["instants"]
        assert samples.text("name")[1] == name


@pytest.mark.parametrize(
    "damaged",
    [
        *({"place": [2, 0]}, {"place": [0]}, {"after_ns": [-1, 0]}, {"places": None}, {"thread": "x"}),
        {"places": [{**SAMPLES["places"][0], "called": 2}, SAMPLES["places"][1]]},
    ],
)
def test_samples_of_another_form_are_refused(damaged: dict[str, Any], path: Path) -> None:
    write_capture(path, **{"samples.json": json.dumps({**SAMPLES, **damaged})})
    with pytest.raises(IngestError, match=r"samples\.json is not valid"):
        read(path)


def test_samples_of_an_unknown_thread_are_left_out(path: Path) -> None:
    write_capture(path, **{"samples.json": json.dumps({**SAMPLES, "thread": 7})})
    assert len(read(path)["instants"]) == 0


def test_a_mark_relates_samples_to_a_trace_without_thread_numbers_and_unix_times(path: Path) -> None:
    """The mark was made 500 ns before the first sample, by a thread with another number there."""
    mark = {"name": EVENT["name"], "unix_ns": 1500, "error_ns": 20}
    text = json.dumps({**SAMPLES, "thread": 7, "mark": mark})
    trace = read(write_capture(path, **{"samples.json": text}))
    samples, start = trace["instants"], int(trace.events["start_ns"][0])
    assert samples["time_ns"].tolist() == [start + 500, start + 1500]
    assert samples["track"].tolist() == [int(trace.events["track"][0])] * 2


def test_samples_whose_mark_is_not_in_the_trace_are_left_out(path: Path) -> None:
    text = json.dumps({**SAMPLES, "mark": {"name": "unknown", "unix_ns": 1500}})
    assert len(read(write_capture(path, **{"samples.json": text}))["instants"]) == 0


def test_why_nothing_was_sampled_is_kept(path: Path) -> None:
    text = json.dumps({"version": 1, "lacks": "samples need Linux and CPython"})
    trace = read(write_capture(path, **{"samples.json": text}))
    assert trace.metadata.properties["not_sampled"] == "samples need Linux and CPython"
    assert len(trace["instants"]) == 0


def test_keys_of_a_later_version_are_kept(path: Path) -> None:
    trace = read(write_capture(path, {**MANIFEST, "weather": "fine"}))
    assert trace.metadata.capture["weather"] == "fine"


def test_progress_ends_at_the_file_s_size(path: Path) -> None:
    write_capture(path, trace={"traceEvents": [EVENT] * 5000})
    pieces: list[int] = []
    read(path, pieces.append)
    assert 0 < sum(pieces) <= path.stat().st_size


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"manifest": None}, "found a zip archive of 'modules.json', 'trace.json'; give a capture"),
        ({"manifest": "{"}, "manifest.json is not valid: Expecting property name"),
        ({"manifest": "[1]"}, "manifest.json is not valid: Expected `object`, got `array`"),
        ({"manifest": {**MANIFEST, "rank": "x"}}, "Expected `int`, got `str` - at `$.rank`"),
        ({"manifest": {**MANIFEST, "unrecorded_steps": ODD_PARTS}}, "Expected `int | null`, got `str`"),
        ({"manifest": {**MANIFEST, "format": "other"}}, "Invalid enum value 'other'"),
        ({"manifest": {**MANIFEST, "version": 2}}, "has version 2, this stepscope reads"),
        ({"modules": {"roots": [{"name": "m"}]}}, "missing required field `class`"),
        ({"modules": "[" * 100_000}, "expected a model tree"),
        ({"trace": "oops"}, "expected a JSON object or array"),
        ({"manifest": None, "data.pkl": "x"}, "(a PyTorch checkpoint)"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(parts: dict[str, Any], message: str, path: Path) -> None:
    write_capture(path, **parts)
    with pytest.raises(IngestError, match=re.escape(message)) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cut_off_capture_is_told(path: Path) -> None:
    content = write_capture(path, trace={"traceEvents": [EVENT] * 1000}).read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(IngestError, match=r"damaged or truncated .*; copy the file again"):
        read(path)


def test_any_damaged_member_is_told(path: Path) -> None:
    whole = write_capture(path).read_bytes()
    with zipfile.ZipFile(path) as archive:
        offsets = [info.header_offset + 30 + len(info.filename) for info in archive.infolist()]
    for offset in offsets:
        damaged = bytearray(whole)
        damaged[offset + 5] ^= 0xFF
        path.write_bytes(damaged)
        with pytest.raises(IngestError):
            read(path)


def test_an_encrypted_member_is_told(path: Path) -> None:
    content = bytearray(write_capture(path).read_bytes())
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    with pytest.raises(IngestError, match=r"manifest\.json is encrypted"):
        read(path)


def test_two_members_of_one_name_are_told(path: Path) -> None:
    write_capture(path)
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("trace.json", "{}")
    with pytest.raises(IngestError, match=r"expected one trace\.json in the capture, found 2"):
        read(path)


def test_a_member_beyond_its_bound_is_told(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(capture._LIMITS, "trace.json", 10)
    with pytest.raises(IngestError, match=r"trace\.json expands"):
        read(write_capture(path))


def test_a_capture_in_gzip_is_told(path: Path) -> None:
    path.write_bytes(gzip.compress(write_capture(path).read_bytes()))
    with pytest.raises(IngestError, match="decompress it with `gunzip`"):
        read(path)


def test_a_device_has_what_the_recorder_and_the_profiler_say_of_it(path: Path) -> None:
    devices = [{"id": 1, "name": "other"}, {"id": 0, "name": "NVIDIA H200", "computeMajor": 9}]
    trace = read(write_capture(path, MANIFEST, trace={**TRACE, "deviceProperties": devices}))
    assert trace.metadata.devices == ({**devices[1], **MANIFEST["devices"][0]},)


def test_the_trace_s_own_words_fill_what_the_manifest_leaves_open(path: Path) -> None:
    devices = [{"name": "V100"}]
    manifest = {**MANIFEST, "devices": [], "framework": None, "framework_version": None}
    trace = read(write_capture(path, manifest, trace={**TRACE, "deviceProperties": devices}))
    assert trace.metadata.framework == "pytorch"
    assert trace.metadata.devices == ({"name": "V100"},)


STEPS = {"count": 3, "median_ns": 5, "p10_ns": 4, "p90_ns": 6}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("threads", "many", r"Expected `int \| null`, got `str` - at `\$\.threads`"),
        ("cpu_count", [2], r"at `\$\.cpu_count`"),
        ("steps_recorded", ["five"], r"at `\$\.steps_recorded\[0\]`"),
        ("loaders", [{"workers": "x"}], r"at `\$\.loaders\[0\]\.workers`"),
        ("created", [{"what": "optimizer"}], r"at `\$\.created\[0\]`"),
        ("rank", 2**40, r"at `\$\.rank`"),
        ("world_size", 2**63, r"at `\$\.world_size`"),
        ("command", 5, r"at `\$\.command`"),
        ("awaited", "x", r"at `\$\.awaited`"),
        ("recorded_steps", {**STEPS, "used_ns": "x"}, r"at `\$\.recorded_steps\.used_ns`"),
    ],
)
def test_a_fact_of_another_type_is_refused_at_once(path: Path, key: str, value: object, message: str) -> None:
    with pytest.raises(IngestError, match=message):
        read(write_capture(path, {**MANIFEST, key: value}))


def test_half_a_letter_in_a_manifest_is_replaced(path: Path) -> None:
    manifest = json.dumps(MANIFEST).replace("recorded steps", "recorded\\udfff steps")
    assert read(write_capture(path, manifest)).metadata.capture["message"] == (
        "recorded? steps 5 to 7 of 100"
    )


@pytest.mark.parametrize("name", ["trace.json", "contexts.json", "modules.json"])
def test_a_member_that_expands_as_no_recording_does_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "bomb.stepscope"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(MANIFEST))
        archive.writestr(name, b"{}," * (12 << 20))
    with pytest.raises(IngestError, match=rf"{name} expands [\d,]+ bytes to 36 MiB"):
        read(path)
