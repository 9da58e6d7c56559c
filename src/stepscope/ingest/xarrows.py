"""Arrows between threads: a producer's event and its consumer's bear the same kind and number.

Source: xplane_schema.cc, kProducerType, kProducerId, kConsumerType and kConsumerId (`_pt` …).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stepscope.ingest.xevents import Batch
from stepscope.trace.builder import Arrows
from stepscope.trace.table import Text

Codes = NDArray[np.int64]
_TAIL, _HEAD = ("_pt", "_p"), ("_ct", "_c")
_COLUMNS = ("kind", "identity", "is_head", "time_ns", "track")


class ArrowEnds:
    """Gathers the ends of the arrows of a file."""

    def __init__(self) -> None:
        self._chunks = [np.zeros((len(_COLUMNS), 0), np.int64)]

    def take(self, batch: Batch, rows: NDArray[np.intp], columns: dict[str, Codes]) -> None:
        """Take the ends among `rows` of a batch, whose columns as events are given."""
        for is_head, (kind, identity) in enumerate((_TAIL, _HEAD)):
            number = batch.integers(identity)[rows]
            have = np.flatnonzero(number != -1)
            parts = (
                batch.integers(kind)[rows][have], number[have], np.full(len(have), is_head),
                columns["start_ns"][have], columns["track"][have],
            )  # fmt: skip
            self._chunks.append(np.stack(parts))

    def arrows(self) -> Arrows:
        """All of them, kinds and numbers as codes."""
        kind, identity, is_head, time, track = np.concatenate(self._chunks, axis=1)
        kinds, code = np.unique(kind, return_inverse=True)
        return Arrows(
            kind=Text(code, [f"flow {one}" for one in kinds.tolist()]),
            identity=np.unique(identity, return_inverse=True)[1],
            is_head=is_head > 0,
            time_ns=time,
            track=track.astype(np.int32),
        )
