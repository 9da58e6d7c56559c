"""Every reader against damaged files: a trace or one clear line, never another exception.

Each target mutates the seeds in `corpus/TARGET`. In CI the number of examples is bounded; longer:

    STEPSCOPE_FUZZ_EXAMPLES=100000 python -m pytest tests/fuzz

An input that fails belongs into the corpus (hypothesis prints the example): it is then read as it
is by `test_seeds`, and mutated further.
"""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from stepscope.annotate import annotate
from stepscope.errors import StepscopeError
from stepscope.ingest import read
from stepscope.ingest.model_json import parse_model

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = int(os.environ.get("STEPSCOPE_FUZZ_EXAMPLES", "80"))
TOKENS = [
    b"", b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\0", b"\xff", b"\n", b"null", b"NaN",
    b"-1", b"1e999", b"1e-7", b"9" * 30, b"-9223372036854775808", b"2147483648", b'"\\ud800"',
    b"{}", b"[]", b'"x"', b"true", b'"traceEvents":[', b"[" * 200, b'{"a":' * 200, b"\x0a\xff\x7f",
]  # fmt: skip
Edit = tuple[str, float, float, bytes, int]
EDITS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "replace", "cut", "copy", "flip", "number", "value"]),
        st.floats(0, 1),
        st.floats(0, 1),
        st.sampled_from(TOKENS),
        st.integers(0, 255),
    ),
    min_size=1,
    max_size=6,
)


def mutated(data: bytes, edits: list[Edit]) -> bytes:
    """Data after some edits, whose places are parts of its length."""
    for kind, first, second, token, byte in edits:
        start, end = sorted((int(first * len(data)), int(second * len(data))))
        if kind == "insert":
            data = data[:start] + token + data[start:]
        elif kind == "replace":
            data = data[:start] + token + data[start + len(token) :]
        elif kind == "cut":
            data = data[:start] + data[end:]
        elif kind == "copy":
            data = data[:end] + data[start:end] + data[end:]
        elif kind == "flip":
            data = data[:start] + bytes([byte]) + data[start + 1 :]
        else:
            data = _with_other_value(data, first, token, b"0123456789" if kind == "number" else b"")
    return data[: 1 << 20]


def _with_other_value(data: bytes, place: float, token: bytes, digits: bytes) -> bytes:
    """Data in which the number, or the value after the colon, at some place is another."""
    start = data.find(b":", int(place * len(data))) + 1
    end = start
    while end < len(data) and (data[end] in digits + b" -." if digits else data[end] not in b",}]"):
        end += 1
    return data[:start] + token + data[end:]


def check_message(error: StepscopeError) -> None:
    """A message is one line."""
    if "\n" in str(error):
        raise AssertionError(str(error))


def check_file(data: bytes) -> None:
    """Read and annotate a file of some bytes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        try:
            trace = read(path)
            annotate(trace, trace.metadata.model or None)
        except StepscopeError as error:
            check_message(error)


def check_member(name: str) -> Callable[[bytes], None]:
    """A check of one member of a capture whose others are sound."""

    def check(data: bytes) -> None:
        parts = {
            "manifest.json": (CORPUS / "manifest/plain.json").read_bytes(),
            "modules.json": json.dumps({"roots": []}).encode(),
            "trace.json": (CORPUS / "file/kineto.json").read_bytes(),
            name: data,
        }
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for member, content in parts.items():
                archive.writestr(member, content)
        check_file(file.getvalue())

    return check


def check_model(data: bytes) -> None:
    """A file given with `--model`."""
    try:
        parse_model(data)
    except StepscopeError as error:
        check_message(error)
        return
    check_member("modules.json")(data if b'"roots"' in data else b'{"roots":[' + data + b"]}")


TARGETS: dict[str, Callable[[bytes], None]] = {
    "file": check_file,
    "manifest": check_member("manifest.json"),
    "contexts": check_member("contexts.json"),
    "model": check_model,
}


def seeds(target: str) -> list[Path]:
    """The files of a target's corpus."""
    return sorted((CORPUS / target).iterdir())


@pytest.mark.parametrize(
    "path",
    [path for target in TARGETS for path in seeds(target)],
    ids=lambda path: f"{path.parent.name}-{path.name}",
)
def test_seeds(path: Path) -> None:
    TARGETS[path.parent.name](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_mutated(target: str) -> None:
    files = [path.read_bytes() for path in seeds(target)]

    @seed(16)
    @settings(max_examples=EXAMPLES * len(files), deadline=None, database=None)
    @given(st.sampled_from(files), EDITS)
    def run(data: bytes, edits: list[Edit]) -> None:
        TARGETS[target](mutated(data, edits))

    run()
