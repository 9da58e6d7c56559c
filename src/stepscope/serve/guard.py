"""Who may ask: only the user's own browser and programs, by a token, under a local name.

The server listens on this machine only, but any page in the user's browser can send requests to it,
and a foreign name can be made to lead to it (DNS rebinding). So a request has to carry the token,
and to name this machine as its host and, if at all, as its origin.
"""

from __future__ import annotations

import secrets
from hmac import compare_digest
from urllib.parse import urlencode, urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL = ("127.0.0.1", "localhost", "::1")
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "SAMEORIGIN",
}
_NO_TOKEN = (
    "expected the token of this server, found none or another; "
    "open the URL that `stepscope view` printed"
)


class Token:
    """The secret that a request has to carry, and tickets that stand for it once."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._tickets: set[str] = set()

    def ticket(self) -> str:
        """A token that works once: for a command line, which others on the machine can see."""
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(ticket)
        return ticket

    def fits(self, given: str) -> bool:
        """Whether this is the secret."""
        return compare_digest(given.encode(), self.secret.encode())

    def admits(self, given: str) -> bool:
        """Whether this is the secret or a ticket not used before."""
        if given in self._tickets:
            self._tickets.discard(given)
            return True
        return self.fits(given)


class Guard:
    """Lets requests through to an app that come from the user, and marks every response.

    Args:
        app: what is guarded.
        token: what requests have to carry.
        port: that the server listens on; the cookie is named with it, as ports share cookies.
    """

    def __init__(self, app: ASGIApp, token: Token, port: int) -> None:
        self._app, self._token, self.cookie = app, token, f"stepscope_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        response = self._refusal(request) or self._entrance(request)
        respond: ASGIApp = response or self._app
        await respond(scope, receive, _marking(send))

    def _refusal(self, request: Request) -> Response | None:
        for check in (_method, _host, _origin):
            if (response := check(request)) is not None:
                return response
        return None

    def _entrance(self, request: Request) -> Response | None:
        """A response to those without the token, and to those who bring it in the URL."""
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/":
            return self._welcome(request) if self._token.admits(given) else _refuse(_NO_TOKEN, 401)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self._token.fits(bearer.strip()):
            return None
        if self._token.fits(request.cookies.get(self.cookie, "")):
            return None
        return _refuse(_NO_TOKEN, 401)

    def _welcome(self, request: Request) -> Response:
        """Put the token into a cookie, and out of the URL, which is copied and remembered."""
        rest = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        response = RedirectResponse(f"/?{urlencode(rest)}" if rest else "/", 303)
        response.set_cookie(self.cookie, self._token.secret, httponly=True, samesite="strict")
        return response


def _method(request: Request) -> Response | None:
    if request.method in ("GET", "HEAD"):
        return None
    return _refuse(f"expected a GET request, found {request.method}: nothing changes here", 405)


def _host(request: Request) -> Response | None:
    if _name(request.headers.get("host", "")) in _LOCAL:
        return None
    return _refuse("expected this machine's own name as the host, found another", 403)


def _origin(request: Request) -> Response | None:
    """Where an origin is told it has to be this server, port included."""
    origin = request.headers.get("origin")
    if origin is None or origin == f"http://{request.headers.get('host', '')}":
        return None
    return _refuse("expected a request from this page, found one from elsewhere", 403)


def _name(host: str) -> str:
    """The host without its port; any port, so that one can be forwarded to another machine."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refuse(message: str, status: int) -> Response:
    return PlainTextResponse(f"{message}\n", status, {"Cache-Control": "no-store"})


def _marking(send: Send) -> Send:
    """Adds the headers that every response has."""

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return marked
