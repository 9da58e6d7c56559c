"""Runs the application on this machine until Ctrl-C."""

from __future__ import annotations

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

from stepscope.errors import ServeError
from stepscope.serve.app import make_app
from stepscope.serve.guard import Token
from stepscope.serve.workbench import Workbench

HOST = "127.0.0.1"
FIRST_PORT = 8765
_TRIED = 20
_PATIENCE_S = 2


class Server(uvicorn.Server):
    """A server that says when it is ready.

    Args:
        config: of uvicorn.
        ready: called once it listens.
    """

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        self._ready()


def serve(
    workbench: Workbench, port: int | None, browser: bool, model: Path | None, cache: bool
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        workbench: the files to open.
        port: to listen on; by default the first free one from `FIRST_PORT` on.
        browser: open the page in the user's browser.
        model: a JSON file with the model tree.
        cache: keep what is read, and use what was kept.

    Raises:
        ServeError: if the port is taken.
    """
    token, listening = Token(), listen(port)
    number = listening.getsockname()[1]
    base = f"http://{HOST}:{number}/"

    def ready() -> None:
        print(f"{base}?token={token.secret}", flush=True)
        print("Ctrl-C ends it.", file=sys.stderr, flush=True)
        if browser and _has_screen():
            address = f"{base}?token={token.ticket()}"
            Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    config = uvicorn.Config(
        make_app(workbench, token, number), log_level="warning", access_log=False, lifespan="off",
        server_header=False, timeout_graceful_shutdown=_PATIENCE_S,
    )  # fmt: skip
    workbench.load(model, cache)
    # Ctrl-C is how one ends a server, so it is no failure.
    with suppress(KeyboardInterrupt):
        Server(config, ready).run([listening])
    _end(workbench)


def listen(port: int | None) -> socket.socket:
    """A socket that listens on this machine alone.

    Args:
        port: by default the first free one from `FIRST_PORT` on.

    Raises:
        ServeError: if the port is taken.
    """
    tried = range(FIRST_PORT, FIRST_PORT + _TRIED) if port is None else (port,)
    for number in (*tried, *((0,) if port is None else ())):
        # Only for sockets that name TCP does asyncio turn off the wait for fuller packets, which
        # held back each answer by 40 ms.
        listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        if os.name == "posix":
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, number))
            listening.listen()  # at once: until then another server could bind it too
        except (OSError, OverflowError) as error:
            listening.close()
            reason = error
            continue
        return listening
    raise ServeError(
        f"expected port {port} to be free, found it is not ({reason}); choose another by --port"
    )


def _has_screen() -> bool:
    """Whether a browser would open a window, and not take over the terminal."""
    if sys.platform in ("darwin", "win32"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))


def _end(workbench: Workbench) -> None:
    """Where a file is still being read, leave at once: its thread cannot be stopped."""
    if workbench.is_loading:
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
