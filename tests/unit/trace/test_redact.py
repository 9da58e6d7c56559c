"""A redacted trace: no name of the user's is left, every number is, and damaged files are refused."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import platformdirs
import pytest
from examples import assert_same, drawn_traces
from hypothesis import given, settings

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.portable import from_bytes, to_bytes
from stepscope.trace.redact import Words, own_words, redacted
from stepscope.trace.schema import CONTEXTS, COUNTERS, FRAMES, INSTRUCTION_SAMPLES, MODULES, STORAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

KEY = b"a key of tests"
WORDS = Words(KEY)
STEP = annotate(
    drawn_trace("""
        main     |  0 100 | ProfilerStep#0
        main     | 10  20 | aten::mm         | seq=1
        main     | 12  14 | cudaLaunchKernel | corr=7
        main     | 50  60 | acme_data
        main     | 62  70 | acme::sort   | cat=cpu_op
        main     | 72  80 | acme::phase  | cat=annotation
        main     | 82  90 | acme::train  | cat=other
        stream 7 | 30  50 | acme_kernel      | corr=7
    """)
)


@settings(max_examples=40, deadline=None)
@given(drawn_traces())
def test_any_trace_is_the_same_after_its_bytes(trace: Trace) -> None:
    assert_same(from_bytes(to_bytes(trace)), trace)


def test_a_trace_of_facts_is_the_same_after_its_bytes() -> None:
    counters = Table(COUNTERS, {"time_ns": [1, 2], "track": [0, 1], "value": [1.5, -2.0], "name": ["a", "b"]})
    trace = STEP.with_table(counters)
    assert_same(from_bytes(to_bytes(trace)), trace)
    assert_same(from_bytes(to_bytes(Trace({}))), Trace({}))
    assert msgspec.msgpack.decode(to_bytes(trace))["version"] == 1


def test_what_msgpack_has_not_becomes_text() -> None:
    trace = STEP.with_metadata(properties={"folder": Path("a")}, origin_ns=1 << 61)
    assert from_bytes(to_bytes(trace)).metadata.properties == {"folder": "a"}


def test_kernels_and_operators_keep_their_names_and_ranges_lose_them() -> None:
    names = list(redacted(STEP, WORDS).events.text("name"))
    assert names[:3] == ["ProfilerStep#0", "aten::mm", "cudaLaunchKernel"]
    assert "acme_kernel" in names
    assert "acme::sort" in names
    assert not {"acme_data", "acme::phase", "acme::train"} & {*names}


@pytest.mark.parametrize(
    "text",
    [
        *("aten::mm", "aten::add(float)", "[128, 1000]", "c10::BFloat16", "ProfilerStep#3", "1.5e-05"),
        *("512x3072", "Optimizer.step#AdamW.step", "autograd::engine::evaluate_function: AddmmBackward0"),
        *("Float", "Short", "Float8_e4m3fn"),  # of collectives
        *("DataLoader", "torch.nn.functional.relu", "/device:GPU:0", "0x7f90aa", "cuda:0", ""),
    ],
)
def test_what_the_analysis_reads_is_kept(text: str) -> None:
    assert WORDS.text(text) == text


@pytest.mark.parametrize(
    ("file", "kept"),
    [
        ("torch/nn/modules/module.py", True),
        ("/opt/conda/lib/python3.11/threading.py", False),  # only /opt/conda is replaced
        ("threading.py", True),
        ("train.py", False),
        ("torch/hub.py", True),
        ("jax/acme.py", False),  # a script in a folder that is called as the package
        ("jax/acme/random.py", False),
        ("acme/torch/model.py", False),
        ("<stdin>", True),
        ("/tmp/<string>", True),
        ("torch/../model.py", False),
    ],
)
def test_files_of_public_packages_are_kept(file: str, kept: bool) -> None:
    assert (WORDS.file(file) == file) is kept


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("torch/nn/modules/module.py(1553): _call_impl", True),
        ("acme/torch/model.py(3): forward", False),
        ("torch/nn/../../acme/model.py(3): forward", False),
    ],
)
def test_ranges_named_by_frames_of_public_packages_are_kept(name: str, kept: bool) -> None:
    assert (WORDS.range(name) == name) is kept


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        *((f"{library}GetX_2", True) for library in ("cu", "cuda", "hip", "nccl", "rccl", "nvrtc")),
        *((name, False) for name in ("cudacorp", "hipster_x", "cuXy me", "my cudaX", "acmeLaunch", "xcuA")),
        *((name, True) for name in ("acme::sort", "a::b.c::d", "_x1::y")),
        *((name, False) for name in ("acme::", "1a::zed", "acme::sort me", "::zed", "acme:zed")),
    ],
)
def test_calls_and_operators_keep_their_names(name: str, kept: bool) -> None:
    assert (WORDS.event(name) == name) is kept


@pytest.mark.parametrize(
    ("file", "form"),
    [
        ("/opt/conda/lib/python3.11/threading.py", r"/\w{8}/\w{8}/lib/python3.11/threading\.py"),
        ("torch/acme.so", r"torch/[a-z]{8}\.\w+"),
        ("acme/torch/model.so", r"[a-z]{8}/[a-z]{8}/[a-z]{8}\.[a-z]{8}"),
        ("/tmp/acme_3.json.gz", r"/tmp/[a-z]{8}_3\.json\.gz"),
        ("C:\\acme\\train.py", r"\w{8}:\\[a-z]{8}\\[a-z]{8}\.py"),
        ("acme/Linear.py", r"[a-z]{8}/Linear\.py"),
    ],
)
def test_of_other_files_endings_and_common_folders_are_kept(file: str, form: str) -> None:
    assert re.fullmatch(form, WORDS.file(file))


@pytest.mark.parametrize(
    ("rule", "text", "form"),
    [
        ("class_name", "torch.nn.Acme", r"torch\.nn\.Acme"),
        ("class_name", "acme.Linear", r"[a-z]{8}\.Linear"),
        ("class_name", "Acme", r"[A-Z][a-z]{7}"),
        ("module_path", "acme17.forward.Linear_0", r"[a-z]{8}17\.[a-z]{8}\.Linear_0"),
        ("module_path", "block 1e5", r"[a-z]{8} 1e5"),
        ("event", "acme::sort", "acme::sort"),
        ("event", "cudaAcme", "cudaAcme"),
        ("event", "acme::sort forward", r"[a-z]{8}::sort forward"),
        ("instruction", "v_add_f32 v1, acme +0x1c", r"v_add_f32 \+0x1c"),
        ("instruction", "mov acme, 0x1c", r"\w+ [a-z]{8}, 0x1c"),
        ("range", "torch/nn/module.py(3): acme", r"torch/nn/module\.py\(3\): acme"),
        ("range", "stepscope.module: acme.forward", r"stepscope\.module: [a-z]{8}\.[a-z]{8}"),
        ("range", "acme forward", r"[a-z]{8} forward"),
        ("text", "AcmeFused_2", r"[A-Z][a-z]{7}fused_2"),
        ("text", "jit_acme", r"jit_[a-z]{8}"),
        ("text", "triton_poi_fused_acme_add_0", "triton_poi_fused_acme_add_0"),
        ("text", "MmBackward0 _ 0xacme", r"MmBackward0 _ 0?[a-z]{8}"),
        ("text", "/job:acme", r"/job:[a-z]{8}"),
        ("text", "torch.acme acme.torch", r"torch\.acme [a-z]{8}\.torch"),
        # A folder of the user's has this name more often than the package.
        ("class_name", "datasets.acme.Acme", r"[a-z]{8}\.[a-z]{8}\.[A-Z][a-z]{7}"),
        # Words of any script, with their marks, and pictures.
        *(
            ("text", word, r"[A-Z]?[a-z]{7,8}")
            for word in ("\u24d0\u24dc", "\U0001f984", "Zoe\u0308", "\u0939\u093f")
        ),
        # Addresses of all kinds, and keys.
        *(
            ("text", address, r"[a-z]{8}")
            for address in ("00-11-22-33-44-55", "0011.2233.4455", "1234::5678", "fe80::1")
        ),
        ("text", "node10.1.2.3", r"[a-z]{8}"),
        ("text", "0x" + "1f" * 32, r"[a-z]{8}"),
        ("text", "torch 2.13.0 12.4", r"torch 2\.13\.0 12\.4"),
    ],
)
def test_each_kind_of_text_has_its_rule(rule: str, text: str, form: str) -> None:
    assert re.fullmatch(form, getattr(WORDS, rule)(text)), getattr(WORDS, rule)(text)


def test_letters_of_a_word_are_those_of_earlier_versions() -> None:
    """Else files redacted with one key would no longer name the same things alike."""
    assert [WORDS.text(word) for word in ("acme", "acme_1")] == ["jmonfrbz", "jmonfrbz_1"]
    assert WORDS.text("jit_acme") == "jit_jmonfrbz"
    assert WORDS.text("\udc80acme") == "\udc80jmonfrbz"  # a name that is not UTF-8


class Setting(msgspec.Struct):
    kind: str
    path: str
    number: int


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        *(("note", "forward", True), ("note", "acme", False), ("note", 7, True), ("note", None, True)),
        *((name, "forward", False) for name in ("path", "module", "base", "modules", "root", "class")),
        *(("class", "torch.acme", True), ("path", "torch.acme", False), ("note", ["forward"], True)),
        *(("kernel", "acme::sort", True), ("kernel", "acme_sort", False), ("note", "acme::sort", False)),
        *(("devices", [{name: "acme"}], name != "note") for name in ("name", "device_vendor", "note")),
        *(("options", {"acme": "forward"}, True), ("options", {"acme": "acme"}, False)),
        *(("allocator_settings", {"acme": 1}, True), ("note", {"acme": 1}, False)),
        *(("updated_modules", {"forward": ["forward"]}, False), ("note", {"forward": ["forward"]}, True)),
    ],
)
def test_a_value_is_replaced_by_the_rule_of_its_key(key: str, value: object, kept: bool) -> None:
    assert (WORDS.value(value, key) == value) is kept


def test_a_struct_keeps_its_fields_and_words_of_closed_lists() -> None:
    found = WORDS.value({"note": Setting("acme", "forward", 3)})
    assert found == {"note": {"kind": "acme", "path": WORDS.module_path("forward"), "number": 3}}
    assert WORDS.value(("forward", 2)) == ["forward", 2]


def test_the_secret_of_a_user_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platformdirs, "user_data_path", lambda name: tmp_path / "data" / name)
    words = own_words()
    secret = tmp_path / "data" / "stepscope" / "redaction.key"
    assert (len(secret.read_bytes()), secret.stat().st_mode & 0o777) == (32, 0o600)
    assert words.text("acme") == own_words().text("acme") == Words(secret.read_bytes()).text("acme")
    assert words.text("acme") != WORDS.text("acme")
    secret.write_bytes(b"")  # as a full disk leaves it: under it anyone could look names up
    assert own_words().text("acme") != Words(b"").text("acme")
    assert [len(secret.read_bytes()), *secret.parent.iterdir()] == [32, secret]


def test_each_column_has_the_rule_of_its_texts() -> None:
    tables = [
        Table(
            CONTEXTS,
            {
                "name": ["acme_kernel", "acme::sort", "acme::sort", "v_mov acme +0x10"],
                "kind": ["kernel", "annotation", "operator", "instruction"],
                "module": ["forward"] * 4,
                "file": ["/tmp/forward.py"] * 4,
            },
        ),
        Table(
            MODULES, {"path": ["forward"], "name": ["forward"], "class": ["torch.Acme"], "file": ["forward"]}
        ),
        Table(FRAMES, {"function": ["forward"], "file": ["torch/hub.py"]}),
        Table(STORAGES, {"path": ["forward"], "file": ["forward"], "name": ["forward"]}),
        Table(INSTRUCTION_SAMPLES, {"event": [0], "instruction": ["v_mov acme +0x10"], "file": ["forward"]}),
    ]
    trace = STEP
    for table in tables:
        trace = trace.with_table(table)
    found = redacted(trace, WORDS)
    hidden = WORDS.module_path("forward")
    assert list(found["contexts"].text("name")) == [
        *("acme_kernel", WORDS.range("acme::sort"), "acme::sort", "v_mov +0x10")
    ]
    assert set(found["contexts"].text("module")) == {hidden}
    assert set(found["contexts"].text("file")) == {f"/tmp/{hidden}.py"}
    rows = {
        name: {column: value for column, value in next(found[name].rows()).items() if isinstance(value, str)}
        for name in ("modules", "frames", "storages", "instruction_samples")
    }
    texts = [
        *(rows["modules"][name] for name in ("path", "name", "class", "file")),
        *(rows["frames"][name] for name in ("function", "file")),
        *(rows["storages"][name] for name in ("path", "file", "name")),
        *(rows["instruction_samples"][name] for name in ("instruction", "file")),
    ]
    assert texts == [
        *(hidden, hidden, "torch.Acme", hidden),
        *("forward", "torch/hub.py"),
        *(hidden, hidden, "forward"),
        *("v_mov +0x10", hidden),
    ]


def test_metadata_and_arguments_are_redacted() -> None:
    texts = {"source": "acme.json", "framework": "pytorch", "devices": ({"name": "acme GPU", "acme": 1},)}
    free = {name: {"note": "acme forward"} for name in ("capture", "captures", "model", "recording_cost")}
    trace = drawn_trace(
        "main | 0 9 | mm | acme=forward\nmain | 1 2 | add", **texts, **free, properties={"a": "acme"}
    )
    found = redacted(trace, WORDS)
    acme = WORDS.text("acme")
    metadata = found.metadata
    assert (metadata.source, metadata.framework) == ("", "pytorch")
    assert metadata.devices == ({"name": "acme GPU", acme: 1},)
    for name in free:
        assert getattr(metadata, name) == {"note": f"{acme} forward"}
    assert metadata.properties == {WORDS.text("a"): acme, "stepscope_redacted": True}
    assert [found.event_arguments(event) for event in (0, 1)] == [{acme: "forward"}, {}]


def test_where_a_package_is_installed_is_replaced() -> None:
    file = WORDS.file("/home/alice/venv/lib/python3.11/site-packages/torch/nn/functional.py")
    assert file.endswith("/lib/python3.11/site-packages/torch/nn/functional.py")
    assert not {"home", "alice", "venv"} & {*file.split("/")}


@pytest.mark.parametrize(
    "secret",
    [
        *(
            "/home/alice/acme/train.py",
            "C:\\Users\\alice\\acme.py",
            "10.1.2.3",
            "alice@acme.com",
            "acme-node",
        ),
        *(
            "--wandb-key=acme",
            "acme.models.Churn",
            "loss of alice",
            "jit_acme",
            "AcmeFunctionBackward",
            "アクメ",
        ),
        *("nn.Module: Acme_0", "<frozen acme>", "s3://acme/alice", "train_acme", "acme17"),
    ],
)
def test_what_identifies_is_replaced(secret: str) -> None:
    replaced = WORDS.text(secret).lower()
    assert not [word for word in ("alice", "acme", "churn", "10.1.2", "アクメ") if word in replaced]


@pytest.mark.parametrize(
    "address",
    [
        *("10.1.2.3", "52:54:00:12:34:56", "2001:db8:0:0:1:2:3:4", "5f8e1a2b-1234-4567-8901-123456789012"),
        *("ip-10-1-2-3", "2001:db8::7", "tcp://[2001:db8::5054:ff:12:3456]"),
    ],
)
def test_no_number_of_an_address_is_left(address: str) -> None:
    assert not [digit for digit in "0123456789" if digit in WORDS.text(f"at {address}")]


def test_the_key_decides_the_names() -> None:
    again, other = Words(KEY), Words(b"another")
    assert WORDS.text("acme_loss") == again.text("acme_loss") != other.text("acme_loss")


def test_numbers_of_modules_stay_and_so_do_equal_names() -> None:
    path = WORDS.module_path("encoder.layers.3.attn")
    assert path.split(".")[2] == "3"
    assert WORDS.module_path("encoder.layers.4.attn") == path.replace(".3.", ".4.")


# -- damaged files


NUMBERS = {
    "a negative duration": ("duration_ns", [-1]),
    "events out of order": ("start_ns", range(7, 0, -1)),
    "a time beyond all": ("start_ns", [(1 << 61) + 1]),
    "a time before all": ("start_ns", [-(1 << 61) - 1]),
    "a track that does not exist": ("track", [2]),
    "no track": ("track", [-1]),
}


def _with(change: str) -> bytes:
    damaged = msgspec.msgpack.decode(to_bytes(STEP))
    events = damaged["tables"]["events"]
    if change == "more rows than bytes":
        damaged["rows"]["events"] = 1 << 40
    elif change == "a parent that does not exist":
        events["parent"][0] = b"\xff\xff\xff\x7f"
    elif change == "a parent of itself":
        events["parent"][0] = bytes(4)
    elif change == "a text that does not exist":
        events["name"][1] = []
    elif change == "too few rows":
        events["start_ns"][0] = bytes(16)
    elif change == "a rank that is text":
        damaged["metadata"]["ranks"] = ["zero"]
    elif change == "no rank":
        damaged["metadata"]["ranks"] = []
    elif change == "a time of no clock":
        damaged["metadata"]["origin_ns"] = 1 << 62
    elif change == "fewer rows than none":
        damaged["rows"]["events"] = -1
    elif change in NUMBERS:
        column, number = NUMBERS[change]
        events[column][0] = np.array(number, "<i8" if column.endswith("ns") else "<i4").tobytes()
    elif change == "arguments of another length":
        damaged["arguments"] += b" "
    elif change == "arguments in another order":
        damaged["sources"] = np.frombuffer(damaged["sources"], "<i4")[::-1].tobytes()
    elif change == "arguments of too many events":
        damaged["sources"] += b"\x7f\0\0\0"
    elif change == "arguments that end before they begin":
        ends = np.frombuffer(damaged["ends"], "<i8").copy()
        ends[0] = -1
        damaged["ends"] = ends.tobytes()
    elif change == "metadata in metadata":
        deep = b"\xa6source" + b"\x91" * 50_000 + b"\xc0"
        return msgspec.msgpack.encode(damaged).replace(b"\xa6source\xa0", deep)
    else:
        damaged["ends"] = b"\x01" + bytes(7)
    return msgspec.msgpack.encode(damaged)


@pytest.mark.parametrize(
    "change",
    [
        *("more rows than bytes", "a parent that does not exist", "a parent of itself", "too few rows"),
        *("a text that does not exist", "a rank that is text", "arguments of no event"),
        *("no rank", "a time of no clock", "metadata in metadata", "fewer rows than none"),
        *("arguments of another length", "arguments in another order", "arguments of too many events"),
        *("arguments that end before they begin", *NUMBERS),
    ],
)
def test_damaged_tables_are_refused_in_one_line(change: str) -> None:
    with pytest.raises(TraceError, match="the tables of the capture are damaged") as caught:
        from_bytes(_with(change))
    assert "\n" not in str(caught.value)


def test_columns_of_other_versions_are_left_out() -> None:
    other = msgspec.msgpack.decode(to_bytes(STEP))
    other["tables"]["events"]["of_2030"] = [b"", None]
    other["tables"]["of_2030"] = {}
    other["metadata"]["of_2030"] = 1
    assert_same(from_bytes(msgspec.msgpack.encode(other)), STEP)
