"""Runs the application on this machine until Ctrl-C, within limits on its clients."""

import asyncio
import logging
import multiprocessing
import os
import socket
import sys
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Thread

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from stepscope.base.server_log import limit_log
from stepscope.errors import ServeError
from stepscope.faces.page.app import make_app
from stepscope.faces.page.guard import Token
from stepscope.faces.page.open_files import Workbench

HOST = "127.0.0.1"
FIRST_PORT = 8765  # chosen; the help of --port names it
_TRIED = 20  # ports from there on, before the system chooses one
_SHUTDOWN_S = 2  # for answers that are nearly ready
# A long answer in Python, as of the analyzer, leaves the interpreter to a short one this often. A
# short answer needs it some twenty times, once after each call of NumPy that releases it.
_SWITCH_S = 0.0005  # Python's default is ten times as long
_HEADERS_S = 10.0  # for a request to arrive, which a browser sends at once
_IDLE_S = 60  # that a connection is kept without a request
_MAX_CONNECTIONS = 128  # chosen: a browser opens a few for each tab
_MAX_HEADER_BYTES = 1 << 15  # holds the longest SQL allowed, each character quoted as %XX


class TimedProtocol(H11Protocol):
    """HTTP that closes a connection whose request headers do not arrive in time, or one too many.

    uvicorn limits only the time between requests, and refuses requests, not connections.
    """

    headers_s = _HEADERS_S
    most_connections = _MAX_CONNECTIONS

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline: asyncio.TimerHandle | None = None
        self._await_headers()
        if len(self.connections) > self.most_connections:
            transport.close()

    def data_received(self, data: bytes) -> None:
        """Take what arrived; a request that is complete ends the wait, the next begins another."""
        self._await_headers()
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _await_headers(self) -> None:
        in_progress = self.cycle is not None and not self.cycle.response_complete
        if self._deadline is None and not in_progress:
            self._deadline = self.loop.call_later(self.headers_s, self._close)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if not self.transport.is_closing():
            self.transport.close()


class Server(uvicorn.Server):
    """A server that calls back when it is ready; `unfinished` if it ended while it computed answers."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self.unfinished = False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        logging.getLogger("uvicorn.error").disabled = True
        await super().shutdown(sockets)
        self.unfinished = bool(self.server_state.tasks)


def serve(workbench: Workbench, port: int | None, browser: bool, model: Path | None, cache: bool) -> None:
    """Serve the page until Ctrl-C."""
    sys.setswitchinterval(_SWITCH_S)
    token, listening = Token(), listen(port)
    number = listening.getsockname()[1]
    base = f"http://{HOST}:{number}/"

    def ready() -> None:
        print(f"{base}?token={token.secret}", flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr, flush=True)
        if browser and _has_screen():
            Thread(target=webbrowser.open, args=(f"{base}?token={token.ticket()}",), daemon=True).start()

    config = limited_config(make_app(workbench, token, number), "view")
    workbench.load(model, cache)
    # Ctrl-C is the usual way to stop a server, so it is no failure.
    server = Server(config, ready)
    with suppress(KeyboardInterrupt):
        server.run([listening])
    if server.unfinished or workbench.is_loading:
        _exit_at_once()


def limited_config(app: ASGIApp, command: str) -> uvicorn.Config:
    """How a server runs that may have any clients: within limits on them, and on what it logs."""
    TimedProtocol.most_connections = most = most_connections()
    limit_log(command)
    return uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        http=TimedProtocol,
        timeout_keep_alive=_IDLE_S,
        backlog=most // 2,
        h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
    )


def most_connections() -> int:
    """How many connections are held at once: a quarter of the free descriptors, at most 128.

    asyncio accepts as many as may wait, half of that, before it closes the first that is too many,
    which takes it four rounds. The rest is for the files that are read.
    """
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return _MAX_CONNECTIONS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    with socket.socket() as probe:  # the lowest number that is free
        free = limit - probe.fileno()
    return min(_MAX_CONNECTIONS, max(2, free // 4))


def listen(port: int | None) -> socket.socket:
    """A socket that listens on this machine alone; raises ServeError if the port is taken."""
    tried = range(FIRST_PORT, FIRST_PORT + _TRIED) if port is None else (port,)
    for number in (*tried, *((0,) if port is None else ())):
        # asyncio turns off Nagle's algorithm only for sockets that name TCP; it delayed each answer by 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen()  # at once: until then another server could bind it too
        except (OSError, OverflowError) as error:
            listening.close()
            reason = str(getattr(error, "strerror", None) or error).lower()  # address already in use
            continue
        return listening
    raise ServeError(f"cannot listen on {HOST}:{port}: {reason}; choose another with --port")


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _exit_at_once() -> None:
    """Do not wait for threads that read a file or compute an answer: they cannot be stopped."""
    for child in multiprocessing.active_children():
        child.terminate()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
