"""What the page about batch sizes is told."""

from __future__ import annotations

import json
from typing import Any

from stepscope.predict.curve import curve
from stepscope.predict.result import Result
from stepscope.predict.suggestions import suggestions
from stepscope.serve.bundle import page_in_one

ELEMENT = "stepscope-batch"


def batch_answer(result: Result, capacity: float | None = None) -> dict[str, Any]:
    """All that the page shows of one entry file.

    Args:
        result: of profiling it.
        capacity: bytes that a step may take; by default the device's memory.

    Returns:
        As `stepscope batch --json`, with `now` (the prediction at the present batch size),
        `suggestions`, `curve` (predictions to choose from) and `capacity`.
    """
    profile, batch = result.profile, result.entry.batch
    capacity = capacity or profile.device.get("memory_bytes")
    return {
        **result.to_json(),
        "sentence": result.entry.site.sentence,
        "capacity": capacity,
        "now": profile.predict(batch),
        "suggestions": suggestions(profile, batch, capacity),
        "curve": curve(profile, batch, result.breakdown, capacity),
    }


def batch_page(result: Result, capacity: float | None = None) -> str:
    """The page about batch sizes with its data, as HTML that needs nothing else.

    Raises:
        ServeError: the page is not built.
    """
    # No text of JSON may end the element or begin a comment in it.
    text = json.dumps(batch_answer(result, capacity)).replace("<", "\\u003c")
    data = f'<script type="application/json" id="{ELEMENT}">{text}</script>\n'
    return page_in_one(data, "batch.html")
