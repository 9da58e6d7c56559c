"""Formats that are told apart in order to say what to do instead; none of them is read.

Sources: the formats' own specifications for the first bytes; Perfetto's Trace is a protobuf message
whose field 1 is repeated (perfetto/trace/trace.proto).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.errors import IngestError

_MESSAGE = re.compile(rb"^\x0a[\x80-\xff]{0,9}[\x00-\x7f][\x08-\xfa]", re.DOTALL)
_SNAPSHOT_KEYS = (b"segments", b"device_traces", b"allocator_settings")


def _starts(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics)


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


def _is_snapshot(head: bytes) -> bool:
    return _is_pickle(head) and any(key in head for key in _SNAPSHOT_KEYS)


# In order: what a file may be told by, what it is, and what to do with it.
FOREIGN: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (_starts(b"\x28\xb5\x2f\xfd"), "zstd data", "decompress it with `zstd -d` and open that"),
    (_starts(b"\xfd7zXZ\0"), "xz data", "decompress it with `xz -d` and open that"),
    (_starts(b"BZh"), "bzip2 data", "decompress it with `bzip2 -d` and open that"),
    (_starts(b"\x04\x22\x4d\x18"), "lz4 data", "decompress it with `lz4 -d` and open that"),
    (_starts(b"\x1f\x8b"), "gzip data inside gzip data", "decompress it with `gunzip` once"),
    (
        _is_snapshot,
        "a PyTorch memory snapshot (a pickle)",
        "pickles are never loaded here; record with `stepscope run --memory`",
    ),
    (_is_pickle, "a pickle", "pickles are never loaded here; give a trace exported as JSON"),
    (
        _starts(b"SQLite format 3\0"),
        "an SQLite database (Nsight Systems or rocprof)",
        "record the run with torch.profiler or `stepscope run`",
    ),
    (
        _starts(b"NVR\0", b"\x0aNVIDIA"),
        "an NVIDIA Nsight report",
        "record the run with torch.profiler or `stepscope run`",
    ),
    (
        lambda head: b"\0" in head[:512] and bool(_MESSAGE.match(head)),
        "a protobuf message, as Perfetto writes",
        "convert it with Perfetto's `traceconv json` and open that",
    ),
    (
        _starts(b"\xff\xfe", b"\xfe\xff"),
        "UTF-16 text",
        "convert it with `iconv -t UTF-8` and open that",
    ),
)  # fmt: skip


def refuse_foreign(head: bytes) -> None:
    """Say what a file is and what to do with it, if it is a known format that cannot be read.

    Args:
        head: its first bytes.

    Raises:
        IngestError: if it is one.
    """
    for matches, name, advice in FOREIGN:
        if matches(head):
            raise IngestError(
                "expected a .stepscope capture, trace-event JSON or an XLA profile, found "
                f"{name}; {advice}"
            )
