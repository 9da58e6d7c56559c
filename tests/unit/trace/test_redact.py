"""A redacted trace: no name of the user's is left, every number is, and damaged files are refused."""

from __future__ import annotations

import msgspec
import pytest
from examples import assert_same, drawn_traces
from hypothesis import given, settings

from stepscope.errors import TraceError
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.portable import from_bytes, to_bytes
from stepscope.trace.redact import Words, redacted
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
        stream 7 | 30  50 | acme_kernel      | corr=7
    """)
)


@settings(max_examples=40, deadline=None)
@given(drawn_traces())
def test_any_trace_is_the_same_after_its_bytes(trace: Trace) -> None:
    assert_same(from_bytes(to_bytes(trace)), trace)


def test_a_trace_of_facts_is_the_same_after_its_bytes() -> None:
    assert_same(from_bytes(to_bytes(STEP)), STEP)


def test_kernels_and_operators_keep_their_names_and_ranges_lose_them() -> None:
    names = list(redacted(STEP, WORDS).events.text("name"))
    assert names[:3] == ["ProfilerStep#0", "aten::mm", "cudaLaunchKernel"]
    assert "acme_kernel" in names
    assert "acme::sort" in names
    assert not {"acme_data", "acme::phase"} & {*names}


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
        ("acme/torch/model.py", False),
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
        *("no rank", "a time of no clock", "metadata in metadata"),
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
