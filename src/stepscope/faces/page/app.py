"""The web application: the page, its API and Perfetto, protected by the guard."""

import gzip
import re
from asyncio import Event, Lock
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import iterate_in_threadpool, run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError, StepscopeError, TraceError, has_no_descriptors
from stepscope.faces.page import bundle
from stepscope.faces.page.bundle import hashes, perfetto_folder
from stepscope.faces.page.export_answers import report_of
from stepscope.faces.page.guard import Guard, Token
from stepscope.faces.page.open_files import Traces, Workbench
from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.single_file import single_file
from stepscope.faces.page.trace_view import TraceView
from stepscope.trace.redact import own_words, redacted

AHEAD = "levels_inside"
_PREFIX = "/perfetto"
_INLINE = re.compile(r"<script[^>]*>(.+?)</script>", re.DOTALL)
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; frame-src 'self'; "
    "worker-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# Many of them follow each move of the timeline. In several threads they would take the interpreter
# from the level that somebody waits for, and be no sooner done.
_ONE_AT_A_TIME = ("tiles", AHEAD)
_CLOSED = 499  # the client went away; nobody reads it
_LARGE_BYTES = 1 << 16  # smaller answers take longer to compress than to send


class Ahead:
    """Opens levels ahead in parts, and each part once nobody waits for another answer."""

    def __init__(self) -> None:
        self._waiting = 0
        self._nobody_waits = Event()
        self._nobody_waits.set()

    @contextmanager
    def gives_way(self) -> Iterator[None]:
        """While somebody waits for an answer, no further part begins."""
        self._waiting += 1
        self._nobody_waits.clear()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._nobody_waits.set()

    async def prepare(self, workbench: Workbench, request: Request) -> bool:
        """Open the levels that a request asks for; False once its client went away."""
        query = Query(dict(request.query_params))
        timeline = workbench[request.path_params["id"]].view.timeline
        parts = timeline.open_inside(query.text("path"), query.flag("every"))
        await self._nobody_waits.wait()
        async for _ in iterate_in_threadpool(parts):
            if await request.is_disconnected():
                return False
            await self._nobody_waits.wait()
        return not await request.is_disconnected()


class Perfetto:
    """Serves Perfetto's files under a policy of their own: they run WebAssembly and workers."""

    def __init__(self, folder: Path) -> None:
        self._files = StaticFiles(directory=folder)
        inline = _INLINE.findall((folder / "index.html").read_text("utf-8"))
        # Nothing from other origins: Perfetto asks a Google server who the user is.
        self._policy = (
            f"default-src 'self'; script-src 'self' 'wasm-unsafe-eval' {hashes(inline)}; "
            "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
            "connect-src 'self' data: blob:; worker-src 'self' blob:; object-src 'none'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._files.get_response(self._files.get_path(scope), scope)
        response.headers["Content-Security-Policy"] = self._policy
        response.headers["Cache-Control"] = "private, max-age=86400"
        await response(scope, receive, send)


def make_app(workbench: Workbench, token: Token, port: int) -> ASGIApp:
    perfetto = perfetto_folder()

    def list_traces(request: Request) -> Response:
        url = f"{_PREFIX}/index.html" if perfetto else None
        entries = [file.entry() for file in [*workbench.files.values()]]
        whole = "All ranks" if workbench.job else "The whole run" if workbench.watch else ""
        return _json(request, Traces(url, entries, whole))

    def page(request: Request) -> Response:
        name = "ranks" if workbench.job else "watch" if workbench.watch else "index"
        return _file(bundle.page(f"{name}.html").name)

    def job(request: Request) -> Response:
        if workbench.job is None:
            raise ServeError("not found", 404)
        return _json(request, workbench.job)

    def watch(request: Request) -> Response:
        if workbench.watch is None:
            raise ServeError("not found", 404)
        asked = Query(dict(request.query_params))
        answer = workbench.watch.answer(asked.number("rank"), asked.number("after"), workbench.add)
        return _json(request, answer)

    def open_trace(request: Request) -> Response:
        workbench.open(request.path_params["id"])
        return _json(request, workbench[request.path_params["id"]].entry())

    turns = {name: Lock() for name in _ONE_AT_A_TIME}
    ahead = Ahead()

    async def ask(request: Request) -> Response:
        name = request.path_params["name"]
        async with turns.get(name) or nullcontext():
            if name == AHEAD and not await ahead.prepare(workbench, request):
                return Response(status_code=_CLOSED)
            with nullcontext() if name == AHEAD else ahead.gives_way():
                # In a thread, so that a long answer does not block another tab.
                return await run_in_threadpool(_answer, workbench, request)

    routes = [
        Route("/", page),
        Route("/api/job", job),
        Route("/api/watch", watch),
        Route("/api/traces", list_traces),
        Route("/api/traces/{id}/open", open_trace),
        Route("/api/traces/{id}/page", lambda request: _whole_page(workbench, request)),
        Route("/api/traces/{id}/{name}", ask),
        *([Mount(_PREFIX, Perfetto(perfetto))] if perfetto else []),
        Route("/{file}", lambda request: _file(request.path_params["file"])),
    ]
    handlers = dict.fromkeys((HTTPException, StepscopeError, OSError), _refused)
    return Guard(Starlette(routes=routes, exception_handlers=handlers), token, port)


class Failure(msgspec.Struct):
    """Why a request failed."""

    error: str  # one line for the user


def _answer(workbench: Workbench, request: Request) -> Response:
    name, file = request.path_params["name"], workbench[request.path_params["id"]]
    response = _json(request, answer(file.view, name, Query(dict(request.query_params))))
    if name == "trace":
        response.headers["Content-Disposition"] = f'attachment; filename="{file.id}.trace.json"'
    return response


def _whole_page(workbench: Workbench, request: Request) -> Response:
    """The page with its data as one file, as `stepscope report --html` writes it; `redact` as that does."""
    file, query = workbench[request.path_params["id"]], Query(dict(request.query_params))
    view = TraceView(redacted(file.view.trace, own_words())) if query.flag("redact") else file.view
    text = single_file(report_of(view, query.number("rank"), query.number("step"), []))
    # It is to be saved: on this server's origin its scripts could ask for anything.
    headers = {"Content-Security-Policy": "default-src 'none'; sandbox; frame-ancestors 'none'"}
    headers |= {"Cache-Control": "no-store", "Content-Disposition": 'attachment; filename="report.html"'}
    return Response(text, headers=headers, media_type="text/html")


def _json(request: Request, value: msgspec.Struct, status: int = 200) -> Response:
    body, headers = json_bytes(value), {"Cache-Control": "no-store", "Vary": "Accept-Encoding"}
    if len(body) > _LARGE_BYTES and "gzip" in request.headers.get("accept-encoding", ""):
        body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
    headers["Content-Security-Policy"] = "default-src 'none'; frame-ancestors 'none'"
    return Response(body, status, headers, "application/json")


def _file(name: str) -> Response:
    """A file of the bundle, which has no folders."""
    known = {file.name: file for file in bundle.FOLDER.glob("*") if file.is_file()}
    if name not in known:
        raise ServeError("not found", 404)
    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
    return FileResponse(known[name], headers=headers)


async def _refused(request: Request, error: Exception) -> Response:
    if isinstance(error, HTTPException):
        return _json(request, Failure(error.detail), error.status_code)
    if has_no_descriptors(error):  # nothing can be answered now, but later: no traceback for each request
        return _json(request, Failure("the server has too many open files; ask again"), 503)
    if isinstance(error, OSError):
        raise error
    status = getattr(error, "status", 404 if isinstance(error, TraceError) else 400)
    return _json(request, Failure(str(error)), status)
