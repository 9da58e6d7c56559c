"""Who may ask, and under which names."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient

from stepscope.faces.page.guard import SESSION_S, Token

EVERYTHING = ["/", "/index.js", "/api/traces", "/api/traces/run/overview", "/perfetto/index.html"]
EVERYTHING += ["/api/traces/run/page", "/api/traces/run/page?redact=1"]


@pytest.mark.parametrize("path", EVERYTHING)
def test_nothing_is_told_without_the_token(stranger: TestClient, path: str) -> None:
    response = stranger.get(path)
    assert response.status_code == 401
    assert response.text == (
        "the token of this server is missing or wrong; open the URL that `stepscope view` printed\n"
    )


@pytest.mark.parametrize("path", EVERYTHING)
def test_all_is_told_with_it(user: TestClient, path: str) -> None:
    assert user.get(path).status_code == 200


def test_a_wrong_token_is_refused(stranger: TestClient, token: Token) -> None:
    for wrong in ("x", token.secret[:-1], token.secret + "x", "ü"):
        assert stranger.get("/", params={"token": wrong}).status_code == 401
    assert stranger.get("/", headers={"Cookie": "stepscope_8765=x"}).status_code == 401
    given = {"Authorization": f"Bearer {token.secret}x"}
    assert stranger.get("/api/traces", headers=given).status_code == 401


def test_the_token_moves_from_the_url_into_a_cookie(stranger: TestClient, token: Token) -> None:
    response = stranger.get("/", params={"token": token.secret, "theme": "dark"})
    assert (response.status_code, response.headers["location"]) == (303, "/?theme=dark")
    cookie = response.headers["set-cookie"].lower()
    assert cookie.startswith("stepscope_8765=")
    assert "httponly" in cookie
    assert "samesite=strict" in cookie


def test_the_token_in_a_url_opens_the_page_and_nothing_else(stranger: TestClient, token: Token) -> None:
    """Such URLs would end up in histories and logs."""
    assert stranger.get("/api/traces", params={"token": token.secret}).status_code == 401


def test_a_program_sends_the_token_in_a_header(stranger: TestClient, token: Token) -> None:
    given = {"Authorization": f"Bearer {token.secret}"}
    assert stranger.get("/api/traces", headers=given).status_code == 200


def test_the_cookie_of_another_server_does_not_open_this_one(stranger: TestClient, token: Token) -> None:
    for cookie in (
        f"stepscope_8766={token.session(8766)}",
        f"stepscope_8765={token.session(8766)}",
        f"stepscope_8765={token.secret}",
        f"stepscope_8765={Token().session(8765)}",
    ):
        assert stranger.get("/", headers={"Cookie": cookie}).status_code == 401


def test_a_cookie_expires_and_holds_no_token(token: Token) -> None:
    cookie = token.session(8765, now=1000.0)
    assert token.secret not in cookie
    assert token.opens(cookie, 8765, now=1001.0)
    assert not token.opens(cookie, 8765, now=1000.0 + SESSION_S)
    expires, _, signature = cookie.partition(".")
    assert not token.opens(f"{int(expires) + 9999}.{signature}", 8765, now=1001.0)
    assert not token.opens("", 8765)


@pytest.mark.parametrize("headers", [{"Content-Length": "5"}, {"Transfer-Encoding": "chunked"}])
def test_a_body_is_refused_before_anything_else(stranger: TestClient, headers: dict[str, str]) -> None:
    response = stranger.request("GET", "/api/traces", headers=headers, content=b"12345")
    assert response.status_code == 413
    assert response.headers["connection"] == "close"


def test_a_ticket_opens_the_page_once(stranger: TestClient, token: Token) -> None:
    ticket = token.ticket()
    assert stranger.get("/", params={"token": ticket}).status_code == 303
    stranger.cookies.clear()
    assert stranger.get("/", params={"token": ticket}).status_code == 401


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",
        "127.0.0.1.evil.example",
        "0.0.0.0:8765",
        "192.168.0.7:8765",
        "",
        "[::1",
    ],
)
def test_a_name_of_another_machine_is_refused(user: TestClient, host: str) -> None:
    """However a foreign name was made to lead here, the browser says which one it asked for."""
    for path in EVERYTHING:
        assert user.get(path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("host", ["127.0.0.1:8765", "localhost:8765", "[::1]:8765", "localhost:9000"])
def test_local_names_are_served_at_any_port_so_that_it_can_be_forwarded(
    stranger: TestClient, token: Token, host: str
) -> None:
    given = {"Authorization": f"Bearer {token.secret}", "Host": host}
    assert stranger.get("/api/traces", headers=given).status_code == 200


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example",
        "http://127.0.0.1:9999",
        "null",
        "https://127.0.0.1:8765",
        "http://localhost:8765",
    ],
)
def test_a_page_from_elsewhere_is_refused(user: TestClient, origin: str) -> None:
    assert user.get("/api/traces", headers={"Origin": origin}).status_code == 403


def test_the_page_itself_may_ask(user: TestClient) -> None:
    assert user.get("/api/traces", headers={"Origin": "http://127.0.0.1:8765"}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(user: TestClient, method: str) -> None:
    assert user.request(method, "/api/traces").status_code == 405


def test_every_response_says_how_it_may_be_used(user: TestClient) -> None:
    for path in (*EVERYTHING, "/nowhere", "/api/traces/none/overview"):
        headers = user.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "'unsafe-inline'" not in scripts_of(headers["content-security-policy"])
    for path in ("/api/traces", "/api/traces/run/levels", "/api/traces/none/overview"):
        assert user.get(path).headers["cache-control"] == "no-store"


def scripts_of(policy: str) -> str:
    """The part of a policy that says which scripts run."""
    parts = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
    return parts.get("script-src", parts["default-src"])


def test_the_page_may_load_and_ask_nothing_from_elsewhere(user: TestClient) -> None:
    policy = user.get("/").headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self';" in policy
    assert "connect-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy


def test_no_websocket_is_opened(user: TestClient) -> None:
    from starlette.websockets import WebSocketDisconnect

    with pytest.raises(WebSocketDisconnect), user.websocket_connect("/api/traces"):
        pass
