"""Reader of trace-event JSON from PyTorch (Kineto, since 2021) and any other tool.

Source: Trace Event Format (Chrome); Kineto's output_json.cpp for the meaning of its categories and
arguments (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any, BinaryIO

from stepscope.errors import IngestError
from stepscope.ingest.byte_stream import Progress, chunks
from stepscope.ingest.chrome.decode import EventReader
from stepscope.ingest.chrome.event_columns import EventColumns
from stepscope.ingest.chrome.instant_events import (
    arrows_of,
    counter_columns,
    instant_columns,
    memory_columns,
)
from stepscope.ingest.chrome.metadata import metadata_of
from stepscope.ingest.chrome.paddle import is_paddle, read_as_paddle
from stepscope.ingest.chrome.record_columns import RecordColumns
from stepscope.ingest.chrome.repeated_events import drop_repeated_events
from stepscope.ingest.chrome.slices import event_columns, slices_of
from stepscope.ingest.chrome.track_table import track_columns
from stepscope.ingest.chrome.uncategorized import streams_by_label
from stepscope.ingest.warning_log import WarningLog
from stepscope.trace.builder import Parts, build
from stepscope.trace.trace import Trace


def read_trace_events(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a JSON trace, as every `Reader` does."""
    return build(_read_parts(file, gzipped, progress))  # nothing else as large is left by then


def _read_parts(file: BinaryIO, gzipped: bool, progress: Progress) -> Parts:
    log, damage, columns = WarningLog(), WarningLog(), RecordColumns()
    # Both are closed at once, also after an error: left to the garbage collector, their threads
    # could be joined from a thread that is just starting, which would deadlock.
    with closing(chunks(file, gzipped, damage, progress)) as text:
        reader = EventReader(text, log)
        with closing(iter(reader)) as decoded:
            for chunk in decoded:
                columns.add(chunk)
    log.add(damage)  # where the data end; found earlier if reading is ahead of decoding
    return _parts(EventColumns(columns, log), reader.properties)


def _parts(recorded: EventColumns, properties: Mapping[str, Any]) -> Parts:
    """The input of the trace builder."""
    drop_repeated_events(recorded)
    read_as_paddle(recorded)
    metadata = metadata_of(properties, recorded.log)
    if is_paddle(recorded):
        metadata = replace(metadata, framework="paddle")
    streams = streams_by_label(recorded)
    slices = slices_of(recorded)
    parts = Parts(
        events=event_columns(recorded, slices, streams),
        # After the slices, which add tracks.
        tracks=track_columns(recorded, metadata.ranks[0], streams),
        arrows=arrows_of(recorded),
        instants=instant_columns(recorded),
        counters=counter_columns(recorded),
        memory=memory_columns(recorded, metadata.ranks[0]),
        metadata=metadata,
        arguments=recorded.columns.arguments,
        warnings=recorded.log.rows(),
    )
    instants = (parts.instants, parts.counters, parts.memory)
    if not len(slices.row) and not any(len(columns.get("time_ns", ())) for columns in instants):
        raise IngestError(
            "the file holds no readable trace event"
            + "".join(f"; {message}" for _, message, _ in recorded.log.rows())
        )
    return parts
