"""The modules of compiled operations that run the model to evaluate it, outside of both passes."""

from __future__ import annotations

import numpy as np

from stepscope.annotate.modules.module_evidence import Evidence
from stepscope.annotate.names.origin_frames import frames_of_events
from stepscope.arrays import Ids32
from stepscope.trace.schema import STAGES
from stepscope.trace.trace import Trace

_EVALUATION = STAGES.index("evaluation")


def with_evaluation(trace: Trace, evidence: Evidence) -> Ids32:
    """The module of each event, as the evidence has it, with those of compiled evaluations.

    Returns:
        int32, shape (events,), -1 for none.
    """
    events = trace.events
    rows = np.flatnonzero(
        (events["stage"] == _EVALUATION) & (events["origin"] >= 0) & (evidence.call_of < 0)
    )
    traced = np.stack([events["scope"][rows], frames_of_events(trace)[rows]], axis=1)
    places, place = np.unique(traced, axis=0, return_inverse=True)
    scopes = events.text("scope").values
    found = [
        evidence.of_origin((scopes[scope] or "") if scope >= 0 else "", frame)
        for scope, frame in places.tolist()
    ]
    module = evidence.call_of.astype(np.int32)
    module[rows] = np.array(found, np.int32)[place.reshape(-1)]
    return module
