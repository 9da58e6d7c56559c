"""Access control: only the user's own browser and programs, by a token, under a local name.

The server listens on this machine only, but any page in the user's browser can send requests to it,
and a foreign name can resolve to it (DNS rebinding). So a request must carry the token, and must
name this machine as its host and, if it has one, as its origin.
"""

import secrets
import time
from hashlib import sha256
from hmac import compare_digest
from hmac import new as hmac
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
_NO_TOKEN = "the token of this server is missing or wrong; open the URL that `stepscope view` printed"
SESSION_S = 12 * 3600  # of a cookie: a long working day


class Token:
    """The secret that a request must carry, one-time tickets, and cookies derived from it."""

    def __init__(self) -> None:
        self.secret = secrets.token_urlsafe(32)
        self._tickets: set[str] = set()

    def ticket(self) -> str:
        """A token that works once, for a command line, which others on the machine can see."""
        ticket = secrets.token_urlsafe(32)
        self._tickets.add(ticket)
        return ticket

    def session(self, port: int, now: float | None = None) -> str:
        """The value of a cookie: it opens the server on this port alone, for `SESSION_S`.

        Browsers send a cookie to all ports of a host, so another program on this machine may see
        it; the token does not follow from it.
        """
        expires = str(int((time.time() if now is None else now) + SESSION_S))
        return f"{expires}.{self._signature(port, expires)}"

    def opens(self, cookie: str, port: int, now: float | None = None) -> bool:
        """Whether a cookie is of this server's port and has not expired."""
        expires, _, signature = cookie.partition(".")
        if not compare_digest(signature.encode(), self._signature(port, expires).encode()):
            return False
        return int(expires) > (time.time() if now is None else now)

    def _signature(self, port: int, expires: str) -> str:
        text = f"stepscope view {port} {expires}"
        return hmac(self.secret.encode(), text.encode(), sha256).hexdigest()

    def fits(self, given: str) -> bool:
        return compare_digest(given.encode(), self.secret.encode())

    def admits(self, given: str) -> bool:
        """Whether this is the secret or a ticket not used before."""
        if given in self._tickets:
            self._tickets.discard(given)
            return True
        return self.fits(given)


class Guard:
    """Passes the user's requests on to an app, refuses others, and adds headers to all responses."""

    def __init__(self, app: ASGIApp, token: Token, port: int) -> None:
        self._app, self._token, self._port = app, token, port
        self.cookie = f"stepscope_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope)
        respond: ASGIApp = _refusal(request) or self._entrance(request) or self._app
        await respond(scope, receive, _marking(send))

    def _entrance(self, request: Request) -> Response | None:
        """A refusal without the token, a redirect if the URL has it, None if it is right."""
        given = request.query_params.get("token")
        if given is not None and request.url.path == "/":
            return self._welcome(request) if self._token.admits(given) else _refuse(_NO_TOKEN, 401)
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        is_bearer = scheme.lower() == "bearer" and self._token.fits(bearer.strip())
        if is_bearer or self._token.opens(request.cookies.get(self.cookie, ""), self._port):
            return None
        return _refuse(_NO_TOKEN, 401)

    def _welcome(self, request: Request) -> Response:
        """Set a cookie, and remove the token from the URL, which browsers remember."""
        rest = [pair for pair in request.query_params.multi_items() if pair[0] != "token"]
        response = RedirectResponse(f"/?{urlencode(rest)}" if rest else "/", 303)
        response.set_cookie(
            self.cookie, self._token.session(self._port), max_age=SESSION_S, httponly=True, samesite="strict"
        )
        return response


def _refusal(request: Request) -> Response | None:
    """Why a request is refused whoever sends it; None if it is not."""
    headers, origin = request.headers, request.headers.get("origin")
    if not request.scope["query_string"].isascii():  # some HTTP parsers let any byte pass
        return _refuse("expected an ASCII query; encode other characters with %", 400)
    if request.method not in ("GET", "HEAD"):
        return _refuse(f"expected a GET request, found {request.method}", 405)
    if headers.get("content-length", "0").strip("0") or "transfer-encoding" in headers:
        # Nothing of a body is read, and the connection ends.
        response = _refuse("a request with a body is not accepted", 413)
        response.headers["Connection"] = "close"
        return response
    if _name(headers.get("host", "")) not in _LOCAL:
        return _refuse("the Host header does not name this machine", 403)
    if origin is not None and origin != f"http://{headers.get('host', '')}":  # port included
        return _refuse("the request comes from another page", 403)
    return None


def _name(host: str) -> str:
    """The host without its port; any port, so that one can be forwarded to another machine."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _refuse(message: str, status: int) -> Response:
    return PlainTextResponse(f"{message}\n", status, {"Cache-Control": "no-store"})


def _marking(send: Send) -> Send:

    async def marked(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.lower().encode(), text.encode()) for name, text in _HEADERS.items()]
            message = {**message, "headers": [*message.get("headers", []), *headers]}
        await send(message)

    return marked
