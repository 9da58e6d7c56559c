"""Exported files in the real speedscope: it opens them and finds in them what the tree says."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

import stepscope
from stepscope.facts.contexts import ContextTree, build_contexts, measure
from stepscope.facts.contexts.exports import to_folded, to_speedscope

_HERE = Path(__file__).parent
_TIMES = re.compile(r"^(?P<value>[\d.,]+)(?P<unit>ns|µs|ms|s)? \((?P<share>[<>\d.]+)%\)$")
_NS = {"ns": 1, "µs": 1e3, "ms": 1e6, "s": 1e9, None: 1}


@pytest.fixture(scope="module")
def speedscope(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built speedscope, installed by npm; without npm skipped, under CI=true it fails."""
    npm = shutil.which("npm")
    if npm is None:
        reason = "no npm to install speedscope with"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("speedscope")
    for name in ("package.json", "package-lock.json"):
        shutil.copy(_HERE / "speedscope" / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / "node_modules" / "speedscope" / "dist" / "release"


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(speedscope: Path) -> Iterator[str]:
    """The URL of speedscope's folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(speedscope)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    context.set_default_timeout(120_000)
    yield context.new_page()
    context.close()


@pytest.fixture(scope="module")
def tree(traces: Path) -> ContextTree:
    return build_contexts(stepscope.open(traces / "dlrm_8rank_v100" / "rank0.json.gz", cache=False))


def sandwich(page: Any, served: str, file: str) -> list[tuple[str, float, float]]:
    """Name, total and self of the rows that speedscope lists, the most self first."""
    page.goto(f"{served}/index.html#profileURL={served}/{file}")
    page.get_by_text("Sandwich").click()
    page.locator("table td", has_text="%").first.wait_for()
    rows = [row.inner_text().split("\n") for row in page.locator("table tr").all()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    return [(row[2], value(row[0]), value(row[1])) for row in cells if len(row) == 3 and "%" in row[0]]


def value(text: str) -> float:
    found = _TIMES.match(text)
    assert found, text
    return float(found["value"].replace(",", "")) * _NS[found["unit"]]


def own_by_name(tree: ContextTree, by: str) -> dict[str, float]:
    own: dict[str, float] = {}
    values = measure(tree, by).own
    for node in range(len(tree)):
        own[tree.label(node)] = own.get(tree.label(node), 0.0) + float(values[node])
    return own


def test_a_speedscope_file_shows_each_place_with_its_time(
    page: Any, served: str, speedscope: Path, tree: ContextTree
) -> None:
    import json

    profile = to_speedscope(tree, ["cpu", "device"], "dlrm")
    profile["activeProfileIndex"] = 0
    (speedscope / "run.json").write_text(json.dumps(profile))
    rows = sandwich(page, served, "run.json")
    assert page.title() == "dlrm - speedscope"
    assert page.get_by_text("CPU time (1/2)").count() == 1
    expected = own_by_name(tree, "cpu")
    assert len(rows) > 10
    for name, _, own in rows:
        assert own == pytest.approx(expected[name], rel=0.01)
    hottest = sorted(expected, key=lambda name: -expected[name])
    assert [name for name, _, _ in rows[:5]] == hottest[:5]
    (step,) = tree.search(kind="step")
    total = next(total for name, total, _ in rows if name == "step")
    assert total == pytest.approx(tree.inclusive("cpu_ns").sum[step], rel=0.01)


def test_folded_stacks_show_the_same(page: Any, served: str, speedscope: Path, tree: ContextTree) -> None:
    (speedscope / "stacks.txt").write_text("\n".join(to_folded(tree, "device")))
    rows = sandwich(page, served, "stacks.txt")
    expected = {" ".join(name.split()): own for name, own in own_by_name(tree, "device").items()}
    assert len(rows) > 5
    for name, _, own in rows:
        assert own == pytest.approx(expected[name], rel=0.001)
