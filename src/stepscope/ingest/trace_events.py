"""Reader of trace-event JSON: PyTorch's (Kineto's) of 2021 to today, and any other tool's.

Source: Trace Event Format (Chrome); Kineto's output_json.cpp for what its categories and arguments
mean (https://github.com/pytorch/kineto/blob/main/libkineto/src/output_json.cpp).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any, BinaryIO

from stepscope.errors import IngestError
from stepscope.ingest.columns import Columns
from stepscope.ingest.decode import EventReader
from stepscope.ingest.metadata import metadata_of
from stepscope.ingest.moments import arrows_of, counter_columns, instant_columns, memory_columns
from stepscope.ingest.recorded import Recorded
from stepscope.ingest.slices import event_columns, slices_of
from stepscope.ingest.stream import Progress, chunks
from stepscope.ingest.tally import Tally
from stepscope.ingest.tracks import track_columns
from stepscope.trace.builder import Parts, build
from stepscope.trace.trace import Trace


def read_trace_events(file: BinaryIO, gzipped: bool, progress: Progress) -> Trace:
    """Read a JSON trace, as every `Reader` does."""
    tally, columns = Tally(), Columns()
    # Closed at once, also after an error: its thread must not wait for the garbage collector, which
    # may run in another thread that is just being started and would then wait for that start.
    with closing(chunks(file, gzipped, tally, progress)) as text:
        reader = EventReader(text, tally)
        for records in reader:
            columns.add(records)
    return build(_parts(Recorded(columns, tally), reader.properties))


def _parts(recorded: Recorded, properties: Mapping[str, Any]) -> Parts:
    """Everything for the builder."""
    metadata = metadata_of(properties, recorded.tally)
    slices = slices_of(recorded)
    parts = Parts(
        events=event_columns(recorded, slices),
        tracks=track_columns(recorded, metadata.ranks[0]),  # after the slices, which add tracks
        arrows=arrows_of(recorded),
        instants=instant_columns(recorded),
        counters=counter_columns(recorded),
        memory=memory_columns(recorded, metadata.ranks[0]),
        metadata=metadata,
        arguments=recorded.columns.arguments,
        warnings=recorded.tally.rows(),
    )
    moments = (parts.instants, parts.counters, parts.memory)
    if not len(slices.row) and not any(len(columns.get("time_ns", ())) for columns in moments):
        raise IngestError(
            "expected trace events, found none that could be read"
            + "".join(f"; {message}" for _, message, _ in recorded.tally.rows())
        )
    return parts
