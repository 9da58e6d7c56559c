"""A real Chromium on pages that `stepscope view` serves from processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Workbench
from served_page import ROOT, serving

_PATIENCE_MS = 120_000
# Each answer to the page comes late by up to so many ms, in any order: no test may mind.
_LATE_MS = int(os.environ.get("STEPSCOPE_LATE_ANSWERS", "0"))
_LATE = f"""
const ask = window.fetch;
window.fetch = async (...question) => {{
  const answer = await ask(...question);
  await new Promise(done => setTimeout(done, {_LATE_MS} * (0.1 + 0.9 * Math.random())));
  return answer;
}};
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's program; without one a test is skipped, under CI=true it fails."""
    found = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    if not Path(found).exists():
        reason = f"no Chromium at {found}; run scripts/test, or set STEPSCOPE_CHROMIUM"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """One browser for all tests; drawing on the CPU, as machines of CI have no GPU."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[Path]:
    """Files of these tests; their servers and commands share what they read, in all workers."""
    base = tmp_path_factory.getbasetemp()
    cache = (base if worker_id == "master" else base.parent) / "read"
    cache.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("STEPSCOPE_CACHE", str(cache))
        folder = tmp_path_factory.mktemp("browser")
        (folder / "cache").symlink_to(cache)
        yield folder


def single_file_of(capture: Path, source_root: Path = ROOT) -> Path:
    """What `stepscope report --html` writes of a capture, with the source in a folder."""
    out = capture.with_suffix(".html")
    command = [sys.executable, "-m", "stepscope", "report", str(capture), "--html", str(out)]
    command += ["--source-root", str(source_root)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.fixture(scope="session")
def resnet_url(home: Path, traces: Path) -> Iterator[str]:
    """ResNet-50 of Kineto's samples, with the tree of its modules."""
    trace = traces / "kineto_resnet50_v100" / "num_workers_0.json.gz"
    with serving(home, str(trace), "--model", "examples/resnet50.model.json") as url:
        yield url


@pytest.fixture(scope="session")
def capture(home: Path) -> Path:
    """A training run on the CPU, recorded by `stepscope run`."""
    file = home / "tiny.stepscope"
    record = ["run", "--warmup", "1", "--steps", "2", "-o", str(file)]
    script = ["examples/train_tiny.py", "--steps", "4", "--batch", "8"]
    command = [sys.executable, "-m", "stepscope", *record, *script]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # many threads on two busy cores crawl
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    return file


@pytest.fixture(scope="session")
def several_url(home: Path, traces: Path, capture: Path) -> Iterator[str]:
    """Three traces at once: data-parallel ResNet, eight ranks of DLRM, a capture."""
    ddp = traces / "resnet_ddp_mi300x" / "rank0_act_checkpoint.json.gz"
    with serving(home, str(ddp), str(traces / "dlrm_8rank_v100"), str(capture)) as url:
        yield url


@pytest.fixture(scope="session")
def bare_url(home: Path) -> Iterator[str]:
    """A step of one operator without the shapes of its inputs."""
    events = [
        {"ph": "X", "name": name, "cat": cat, "pid": 1, "tid": 1, "ts": start, "dur": length}
        for name, cat, start, length in (
            ("ProfilerStep#1", "user_annotation", 0, 90),
            ("aten::mm", "cpu_op", 10, 50),
        )
    ]
    file = home / "bare.json"
    file.write_text(json.dumps(events))
    with serving(home, str(file)) as url:
        yield url


@pytest.fixture
def workbench(browser: Any) -> Iterator[Workbench]:
    """A page at 1440x900 that fails its test on any error, foreign request or CSP report."""
    context = browser.new_context(
        viewport={"width": 1440, "height": 900}, color_scheme="light", accept_downloads=True
    )
    context.set_default_timeout(_PATIENCE_MS)
    if _LATE_MS:
        context.add_init_script(_LATE)
    bench = Workbench(context)
    yield bench
    context.close()
    assert bench.problems == []
