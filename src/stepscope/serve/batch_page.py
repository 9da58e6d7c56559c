"""The page about batch sizes, as one HTML file."""

from __future__ import annotations

from stepscope.batch_size.batch_panel import batch_profile
from stepscope.batch_size.entry_result import Result
from stepscope.serve.bundle import page_in_one
from stepscope.serve.json_encoding import encode

ELEMENT = "stepscope-batch"


def batch_page(result: Result, capacity: float | None = None) -> str:
    """The page about batch sizes with its data, as HTML that needs nothing else.

    Raises:
        ServeError: if the page is not built.
    """
    # No JSON text may end the element or begin a comment in it.
    text = encode(batch_profile(result, capacity)).decode().replace("<", "\\u003c")
    data = f'<script type="application/json" id="{ELEMENT}">{text}</script>\n'
    return page_in_one(data, "batch.html")
