"""Formats that are recognized but not read, each with advice on what to do instead.

Sources: the formats' own specifications for the first bytes; Perfetto's Trace is a protobuf message
whose field 1 is repeated (perfetto/trace/trace.proto).
"""

from __future__ import annotations

import re
from collections.abc import Callable

from stepscope.errors import IngestError

_MESSAGE = re.compile(rb"^\x0a[\x80-\xff]{0,9}[\x00-\x7f][\x08-\xfa]", re.DOTALL)


def _starts(*magics: bytes) -> Callable[[bytes], bool]:
    return lambda head: head.startswith(magics)


def _is_pickle(head: bytes) -> bool:
    return head[:1] == b"\x80" and head[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05")


# In order: the test of a file's first bytes, the name of the format, and advice.
FOREIGN: tuple[tuple[Callable[[bytes], bool], str, str], ...] = (
    (_starts(b"\x28\xb5\x2f\xfd"), "zstd data inside compressed data", "decompress it once"),
    (_starts(b"\xfd7zXZ\0"), "xz data", "decompress it with `xz -d` and open that"),
    (_starts(b"BZh"), "bzip2 data", "decompress it with `bzip2 -d` and open that"),
    (_starts(b"\x04\x22\x4d\x18"), "lz4 data", "decompress it with `lz4 -d` and open that"),
    (_starts(b"\x1f\x8b"), "gzip data inside gzip data", "decompress it with `gunzip` once"),
    (_is_pickle, "a pickle", "stepscope never loads pickles; give a trace exported as JSON"),
    (
        _starts(b"NVR\0", b"\x0aNVIDIA"),
        "an Nsight Systems report",
        "export it with `nsys export --type sqlite FILE` and open that",
    ),
    (
        lambda head: b"\0" in head[:512] and bool(_MESSAGE.match(head)),
        "a protobuf message, as Perfetto writes",
        "convert it with Perfetto's `traceconv json` and open that",
    ),
)  # fmt: skip


def refuse_foreign(head: bytes) -> None:
    """Raise an error with advice if a file is of a known format that is not supported.

    Args:
        head: the file's first bytes.

    Raises:
        IngestError: if it is one.
    """
    for matches, name, advice in FOREIGN:
        if matches(head):
            raise IngestError(
                "expected a .stepscope capture, trace-event JSON or an XLA profile, found "
                f"{name}; {advice}"
            )
