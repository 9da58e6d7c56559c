"""What the server answers, over HTTP."""

from __future__ import annotations

import base64
import errno
import gzip
import json
import re
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from stepscope.errors import ServeError
from stepscope.faces.page import bundle
from stepscope.faces.page.open_files import Workbench


def test_the_list_of_traces_says_how_each_stands(user: TestClient, tmp_path: Path) -> None:
    run, broken = user.get("/api/traces").json()["traces"]
    assert run == {
        "id": "run",
        "name": "run.json",
        "path": str(tmp_path / "run.json"),
        "state": "ready",
        "progress": 1.0,
        "message": "",
        "has_steps": True,
    }
    assert broken["state"] == "failed"
    assert "broken.json" in broken["message"]


def test_a_question_is_answered_with_json(user: TestClient) -> None:
    response = user.get("/api/traces/run/levels", params={"path": "s1.0"})
    assert response.headers["content-type"] == "application/json"
    assert [one["path"] for one in response.json()["levels"]] == ["", "s1.0"]


@pytest.mark.parametrize(
    ("url", "status", "message"),
    [
        ("/api/traces/none/overview", 404, "no such trace: 'none'; open: run, broken"),
        ("/api/traces/run/nothing", 404, "expected one of overview"),
        ("/api/traces/run/levels?path=s9.9", 404, "no operation 's9.9' is inside 'the trace'"),
        ("/api/traces/run/levels?every=2", 400, "expected every to be 0 or 1, found '2'"),
        ("/api/traces/run/path?event=x", 400, "expected event to be a whole number, found 'x'"),
        ("/api/traces/run/path?event=99", 404, "expected an event from 0 to 1, found 99"),
        ("/api/traces/run/path", 404, "expected an event from 0 to 1, found None"),
        ("/api/traces/run/modules?step=9", 404, "rank 0 has no step 9; it has 1"),
        ("/api/traces/run/select?module=7", 404, "expected a module below 0, found 7"),
        ("/api/traces/run/details", 404, "expected the path of an operation"),
        ("/api/traces/broken/overview", 409, "broken.json"),
        ("/nowhere.js", 404, "not found"),
    ],
)
def test_a_wrong_question_gets_one_line(user: TestClient, url: str, status: int, message: str) -> None:
    response = user.get(url)
    assert response.status_code == status
    assert message in response.json()["error"]
    assert "\n" not in response.json()["error"]


def test_numbers_of_any_length_are_no_fault(user: TestClient) -> None:
    for number in ("9" * 5000, "-1", "1e3", "٣", "0x1"):
        response = user.get("/api/traces/run/path", params={"event": number})
        assert response.status_code == 400


def test_large_answers_are_packed(user: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "/api/traces/run/overview"
    assert "content-encoding" not in user.get(url).headers
    monkeypatch.setattr("stepscope.faces.page.app._LARGE_BYTES", 10)
    packed = user.get(url)
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.json()["start"] == "s1.0"
    assert "content-encoding" not in user.get(url, headers={"Accept-Encoding": ""}).headers


def test_raw_events_come_as_a_file(user: TestClient) -> None:
    response = user.get("/api/traces/run/trace", params={"path": "s1.0"})
    assert response.headers["content-disposition"] == 'attachment; filename="run.trace.json"'
    names = [one["name"] for one in response.json()["traceEvents"] if one["ph"] == "X"]
    assert names == ["ProfilerStep#1", "aten::mm"]


def test_the_page_comes_as_one_file_also_redacted(
    user: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platformdirs.user_data_path", lambda name: tmp_path / "home" / name)
    named = {}
    for redact in ("", "1"):
        response = user.get("/api/traces/run/page", params={"redact": redact, "rank": 0, "step": 1})
        assert "sandbox" in response.headers["content-security-policy"]
        assert response.headers["content-disposition"].startswith("attachment")
        (data,) = re.findall(r'id="stepscope-data">([^<]+)<', response.text)
        named[redact] = b"run.json" in gzip.decompress(base64.b64decode(data))
    assert named == {"": True, "1": False}
    refused = user.get("/api/traces/run/page", params={"step": 9})
    assert refused.status_code == 404


def test_the_page_and_its_files_are_served(user: TestClient) -> None:
    assert '<div id="app">' in user.get("/").text
    assert user.get("/index.js").headers["content-type"].startswith("text/javascript")
    assert user.get("/index.css").headers["content-type"].startswith("text/css")


@pytest.mark.parametrize(
    "path",
    [
        "/../run.json",
        "/..%2frun.json",
        "/%2e%2e/run.json",
        "/perfetto/../../run.json",
        "/perfetto/..%2f..%2frun.json",
        "/perfetto//etc/passwd",
        "/%2fetc%2fpasswd",
    ],
)
def test_no_path_leads_out_of_the_page(user: TestClient, path: str) -> None:
    assert user.get(path).status_code == 404


def test_a_page_that_is_not_built_says_how_to_build_it(user: TestClient, built_page: Path) -> None:
    (built_page / "index.html").unlink()
    response = user.get("/")
    assert response.status_code == 503
    assert response.json()["error"].endswith(
        "build it with: npm --prefix web ci && npm --prefix web run build"
    )
    with pytest.raises(ServeError, match="the page is not built"):
        bundle.page()


def test_without_descriptors_a_request_is_refused_in_one_line_for_now(
    user: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(name: str = "index.html") -> Path:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(bundle, "page", none_left)
        response = user.get("/")
        assert response.status_code == 503
        assert response.json() == {"error": "the server has too many open files; ask again"}
    assert user.get("/").status_code == 200


def test_hostile_names_come_as_text(tmp_path: Path, built_page: Path) -> None:
    """Whatever a trace holds, the answer is JSON of a type that no browser runs."""
    from stepscope.faces.page.app import make_app
    from stepscope.faces.page.guard import Token

    hostile = '<img src=x onerror=alert(1)></script><script>alert(2)</script>"\u2028'
    file = tmp_path / "<b>evil<b>&.json"
    slices = [
        {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": hostile, "ts": ts, "dur": 5}
        for ts, name in ((0, "ProfilerStep#1"), (1, hostile))
    ]
    file.write_text(json.dumps(slices))
    workbench, token = Workbench([file]), Token()
    workbench.load(cache=False).join()
    (id,) = workbench.files
    assert id == "b-evil-b"
    given = {"Authorization": f"Bearer {token.secret}"}
    with TestClient(make_app(workbench, token, 1), "http://127.0.0.1:1", headers=given) as client:
        for name in (
            "levels?path=s1.0",
            "overview",
            "kernels",
            "details?path=s1.0",
            "trace?path=s1.0",
            "search?text=alert",
        ):
            response = client.get(f"/api/traces/{id}/{name}")
            assert response.status_code == 200
            assert response.headers["content-type"] == "application/json"
            assert response.headers["x-content-type-options"] == "nosniff"
        rows = client.get(f"/api/traces/{id}/kernels").json()["rows"]
        assert hostile in [row["name"] for row in rows]
        assert client.get(f"/api/traces/{id}/search?text=alert").json()["total"] == 1
