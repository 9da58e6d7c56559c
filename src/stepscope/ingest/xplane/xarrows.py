"""Arrows between threads: the events of producer and consumer have the same kind and number.

Source: xplane_schema.cc, kProducerType, kProducerId, kConsumerType and kConsumerId (`_pt` …).
"""

from __future__ import annotations

import numpy as np

from stepscope.arrays import Codes, Rows
from stepscope.ingest.xplane.xevents import Batch
from stepscope.trace.builder import Arrows
from stepscope.trace.table import Text

_TAIL, _HEAD = ("_pt", "_p"), ("_ct", "_c")
_COLUMNS = ("kind", "identity", "is_head", "time_ns", "track")


class ArrowEnds:
    """Collects the ends of the arrows of a file."""

    def __init__(self) -> None:
        self._chunks = [np.zeros((len(_COLUMNS), 0), np.int64)]

    def take(self, batch: Batch, rows: Rows, columns: dict[str, Codes]) -> None:
        """Add the arrow ends among `rows` of a batch; `columns` are its event columns."""
        for is_head, (kind, identity) in enumerate((_TAIL, _HEAD)):
            number = batch.integers(identity)[rows]
            ends = np.flatnonzero(number != -1)
            parts = (
                batch.integers(kind)[rows][ends], number[ends], np.full(len(ends), is_head),
                columns["start_ns"][ends], columns["track"][ends],
            )  # fmt: skip
            self._chunks.append(np.stack(parts))

    def arrows(self) -> Arrows:
        """All arrow ends, kinds and numbers as codes."""
        kind, identity, is_head, time, track = np.concatenate(self._chunks, axis=1)
        kinds, code = np.unique(kind, return_inverse=True)
        return Arrows(
            kind=Text(code, [f"flow {number}" for number in kinds.tolist()]),
            identity=np.unique(identity, return_inverse=True)[1],
            is_head=is_head > 0,
            time_ns=time,
            track=track.astype(np.int32),
        )
