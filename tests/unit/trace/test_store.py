from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from examples import assert_same, drawn_traces
from hypothesis import given

from stepscope.errors import TraceError
from stepscope.read import read
from stepscope.testing import drawn_trace
from stepscope.trace import store
from stepscope.trace.arguments import Arguments
from stepscope.trace.schema import COUNTERS, MEMORY
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

SMALL = """
    main     |  0 100 | ProfilerStep#0
    main     | 10  20 | aten::mm | seq=1 shape=[2,3]
    stream 7 | 30  50 | sgemm    | corr=7
    fwdbwd   | arrow  | aten::mm > sgemm
"""


@given(drawn_traces())
def test_any_trace_comes_back_as_it_was(trace: Trace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        store.save(trace, Path(folder) / "trace")
        assert_same(store.load(Path(folder) / "trace"), trace)


@pytest.mark.main
@pytest.mark.parametrize(
    "name",
    [
        "kineto_resnet50_v100/num_workers_0.json.gz",
        "resnet_ddp_mi300x/rank0_act_checkpoint.json.gz",
        "cuda_graph_vllm/graph_execution.json.gz",
        "dlrm_8rank_v100/rank3.json.gz",
        "edge_cases/gpu_only_mi210.json.gz",
        "edge_cases/malformed/simple-partial.json",
        "edge_cases/malformed/multiprocess.json",
    ],
)
def test_real_traces_come_back_as_they_were(name: str, traces: Path, tmp_path: Path) -> None:
    trace = read(traces / name)
    store.save(trace, tmp_path / "trace")
    assert_same(store.load(tmp_path / "trace"), trace)


def test_numbers_of_every_type_and_arguments_come_back(tmp_path: Path) -> None:
    trace = drawn_trace(SMALL)
    counters = Table(COUNTERS, {"time_ns": [1, 2], "track": [0, 1], "value": [1.5, -2.0], "name": ["a", "b"]})
    trace = trace.with_table(counters).with_events(recompute=[0, 1, 0], stage=["forward", None, None])
    first, second = (trace.arguments.blocks[0].shifted(by) for by in (0, 3))
    trace = Trace(trace.tables, trace.metadata, Arguments((first, second)))
    store.save(trace, tmp_path / "trace")
    found = store.load(tmp_path / "trace")
    assert_same(found, trace)
    assert len(found.arguments.blocks) == 2
    index = json.loads((tmp_path / "trace" / "trace.json").read_text())
    assert (index["format"], index["fingerprint"]) == ("stepscope trace", store.fingerprint())
    assert {*index["members"]} == {
        *("metadata.json", "events.arrow", "tracks.arrow", "flows.arrow", "counters.arrow"),
        "arguments.arrow",
    }


def test_metadata_come_back(tmp_path: Path) -> None:
    trace = drawn_trace(SMALL, ranks=(3,), world_size=8, devices=({"name": "H200"},))
    trace = trace.with_metadata(properties={"nan": "NaN", "deep": {"a": [1, None]}})
    store.save(trace, tmp_path / "trace")
    assert store.load(tmp_path / "trace").metadata == trace.metadata


def test_null_keeps_its_code_and_codes_their_type(tmp_path: Path) -> None:
    trace = drawn_trace(SMALL)
    memory = Table(MEMORY, {"time_ns": [1, 2], "category": ["weights", None], "event": [0, -1]})
    store.save(trace.with_table(memory), tmp_path / "trace")
    found = store.load(tmp_path / "trace")
    assert found["memory"]["category"].tolist() == [0, -1]
    assert found["memory"]["event"].tolist() == [0, -1]
    assert found.events["category"].dtype == trace.events["category"].dtype


def test_loaded_columns_are_mapped_and_cannot_be_changed(tmp_path: Path) -> None:
    store.save(drawn_trace(SMALL), tmp_path / "trace")
    events = store.load(tmp_path / "trace").events
    for column in ("start_ns", "category"):
        assert not events[column].flags.owndata
        with pytest.raises(ValueError, match="read-only"):
            events[column][0] = 5


def test_an_empty_trace_comes_back(tmp_path: Path) -> None:
    store.save(Trace({}), tmp_path / "trace")
    assert_same(store.load(tmp_path / "trace"), Trace({}))


def test_saving_again_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    store.save(drawn_trace(SMALL), tmp_path / "trace")
    store.save(drawn_trace("main | 0 1 | new"), tmp_path / "trace")
    assert list(store.load(tmp_path / "trace").events.text("name")) == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_an_interrupted_save_leaves_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(drawn_trace(SMALL), tmp_path / "trace")

    def interrupt(work: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "_facts", interrupt)
    with pytest.raises(KeyboardInterrupt):
        store.save(drawn_trace("main | 0 1 | new"), tmp_path / "trace")
    assert_same(store.load(tmp_path / "trace"), drawn_trace(SMALL))
    assert [path.name for path in tmp_path.iterdir()] == ["trace"]


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    store.save(drawn_trace(SMALL), folder)
    for member in folder.iterdir():
        content = member.read_bytes()
        places = np.random.default_rng(0).integers(0, len(content), 20)
        for place in {0, len(content) - 1, *places.tolist()}:
            damaged = bytearray(content)
            damaged[place] ^= 1
            member.write_bytes(damaged)
            if _means_another(member.name, content, bytes(damaged)):
                with pytest.raises(TraceError):
                    store.load(folder)
        member.write_bytes(content)


def _means_another(name: str, before: bytes, after: bytes) -> bool:
    """The index has no check sum, but every word of it that counts is itself a check."""
    if name != store.INDEX:
        return True
    try:
        indices = [json.loads(text) for text in (before, after)]
        return any(indices[0][key] != indices[1].get(key) for key in ("fingerprint", "members"))
    except ValueError:
        return True


@pytest.mark.parametrize("change", ["truncate", "empty", "remove"])
@pytest.mark.parametrize("member", ["trace.json", "metadata.json", "events.arrow", "arguments.arrow"])
def test_what_is_missing_is_noticed(change: str, member: str, tmp_path: Path) -> None:
    path = tmp_path / "trace" / member
    store.save(drawn_trace(SMALL), tmp_path / "trace")
    if change == "remove":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[: -7 if change == "truncate" else 0])
    with pytest.raises(TraceError, match="damaged"):
        store.load(tmp_path / "trace")


def test_another_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save(drawn_trace(SMALL), tmp_path / "trace")
    monkeypatch.setattr(store, "LAYOUT", store.LAYOUT + 1)
    with pytest.raises(TraceError, match="another version"):
        store.load(tmp_path / "trace")


def test_a_folder_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="damaged"):
        store.load(tmp_path)
