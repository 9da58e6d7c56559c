"""A server with two files, without a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import TRACE
from starlette.testclient import TestClient

from stepscope.faces.page import bundle
from stepscope.faces.page.app import make_app
from stepscope.faces.page.guard import Token
from stepscope.faces.page.open_files import Workbench

PORT = 8765


@pytest.fixture
def built_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the built page."""
    folder = tmp_path / "_web"
    folder.mkdir()
    (folder / "index.html").write_text(
        '<!doctype html><html><head><link rel="stylesheet" crossorigin href="./index.css">'
        '<script type="module" crossorigin src="./index.js"></script></head>'
        '<body><div id="app"></div></body></html>'
    )
    (folder / "index.js").write_text('document.title = "</script><!-- built";')
    (folder / "index.css").write_text("body { color: red }")
    monkeypatch.setattr(bundle, "FOLDER", folder)
    return folder


@pytest.fixture
def workbench(tmp_path: Path) -> Workbench:
    """Two files, one of them broken, both read."""
    (tmp_path / "run.json").write_text(TRACE)
    (tmp_path / "broken.json").write_text("no trace")
    found = Workbench([tmp_path / "run.json", tmp_path / "broken.json"])
    found.load(cache=False).join()
    return found


@pytest.fixture
def token() -> Token:
    return Token()


@pytest.fixture
def stranger(workbench: Workbench, token: Token, built_page: Path) -> Iterator[TestClient]:
    """A browser that knows no token."""
    app = make_app(workbench, token, PORT)
    url = f"http://127.0.0.1:{PORT}"
    with TestClient(app, url, follow_redirects=False, raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def user(stranger: TestClient, token: Token) -> TestClient:
    """A browser that opened the printed URL."""
    assert stranger.get("/", params={"token": token.secret}).status_code == 303
    return stranger
