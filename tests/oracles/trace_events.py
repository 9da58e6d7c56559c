"""What `ingest/chrome/native` decodes, by msgspec: the specification that it is held to."""

from __future__ import annotations

import msgspec

from stepscope.read.chrome.chunk import Chunk
from stepscope.read.chrome.records import Record, chunk_of

_RECORDS = msgspec.json.Decoder(list[Record])


def decode_chunk(text: bytes, size: int) -> Chunk | None:
    """The columns of the events in the first bytes of a text, or None if it is malformed."""
    text = text[:size]
    try:
        text.decode()  # msgspec does not validate what it leaves as raw text
        return chunk_of(_RECORDS.decode(b"[%b]" % text))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
