"""The page about a watched run: a drawn run of 120,000 steps in one file, and one that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import Workbench
from served_page import serving
from violations import violations

from stepscope.base import watch_format as layout
from stepscope.faces.page.watch_answer import WatchedJob, watch_page
from stepscope.record.watch.watch_file import WatchFile

S = 1_000_000_000
STEPS = 120_000
SLOW_DATA = range(50_000, 50_400)
HICCUP = 90_123


def add_steps(file: WatchFile, first: int, end: int, at_ns: int = 0) -> int:
    """Steps of about 110 ms, with a stretch that waits for data, evaluations and checkpoints."""
    rng = np.random.default_rng(1)
    noise = rng.normal(0, 1, end - first)
    for number in range(first, end):
        times = {"backward": 45.0, "optimizer": 9.0, "input": 2.0, "cpu": 70.0}
        wall = 110 + float(noise[number - first])
        more = {
            "input": 85.0 if number in SLOW_DATA else 0,
            "gc": 900.0 if number == HICCUP else 0,
            "evaluation": 20_000.0 if number % 10_000 == 9_999 else 0,
            "checkpoint": 9_000.0 if number % 20_000 == 19_999 else 0,
        }
        for name, ms in more.items():
            times[name] = times.get(name, 0) + ms
            wall += ms
        row = (number, at_ns, round(wall * 1e6), *(times.get(name, 0.0) for name in layout.TIMES))
        file.add_step(row)
        at_ns += round(wall * 1e6)
    return at_ns


def about(end_ns: int, **more: Any) -> dict[str, Any]:
    """The facts of a run whose last step ends now, 4 s after whose start the first one began."""
    begun_ns = time.time_ns() - end_ns
    place = {"kind": "checkpoint", "function": "save", "file": "/x/train.py", "line": 30}
    places = [{**place, "count": 6, "total_ns": 54 * S}]
    return {"created_unix_ns": begun_ns - 4 * S, "begun_unix_ns": begun_ns, "places": places, **more}


@pytest.fixture(scope="module")
def long_run(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("watch")
    file = WatchFile(folder / "train.watch")
    end_ns = add_steps(file, 0, STEPS)
    file.put_text(about(end_ns, outcome="complete", command="train.py --lr 1"))
    file.flush()
    (folder / "train-step50010.stepscope").write_bytes(b"a recording")
    page = folder / "run.html"
    page.write_text(watch_page(WatchedJob("train", [file.path]).answer()))
    return page.as_uri()


@pytest.fixture
def growing(tmp_path: Path, home: Path) -> Iterator[tuple[WatchFile, dict[str, Any], str]]:
    """The file of a run that goes on, its facts, and the page that is served of it."""
    file = WatchFile(tmp_path / "live.watch")
    end_ns = add_steps(file, 0, 300)
    facts = about(end_ns)
    file.put_text(facts)
    file.flush()
    with serving(home, str(file.path)) as url:
        yield file, facts, url


def opened(workbench: Workbench, url: str, fragment: str = "") -> Any:
    workbench.open(url, fragment, shown=".watch-room canvas")
    return workbench.page


def text_of(workbench: Workbench, selector: str) -> str:
    found: str = workbench.page.locator(selector).first.inner_text()
    return " ".join(found.replace("\u202f", " ").split())


def test_the_run_its_verdict_and_its_bill_are_on_screen(workbench: Workbench, long_run: str) -> None:
    opened(workbench, long_run)
    verdict = text_of(workbench, ".watch-verdict")
    assert verdict.startswith("Of 3.7")
    assert "Steps 50,000 to 50,399 took 1.77 times the usual: waiting for data." in verdict
    rows = workbench.page.locator(".watch-bill .watch-row").all_inner_texts()
    found = [" ".join(row.replace("\u202f", " ").split()) for row in rows]
    assert "checkpoints 54.0 s 0.4% save at train.py:30, 6 times" in found
    assert text_of(workbench, ".watch-state").startswith("120,000 steps in ")


def columns_with(page: Any, color: str) -> list[int]:
    """Pixel columns in whose middle the canvas is not as its ground is."""
    return page.evaluate(
        """color => {
      const canvas = document.querySelector('.watch-room canvas');
      const y = Math.round(Number(color) * devicePixelRatio);
      const {data} = canvas.getContext('2d').getImageData(0, y, canvas.width, 1);
      const at = x => data.slice(4 * x, 4 * x + 3).join();
      const count = {};
      for (let x = 0; x < canvas.width; x++) count[at(x)] = (count[at(x)] ?? 0) + 1;
      const ground = Object.entries(count).sort((a, b) => b[1] - a[1])[0][0];
      return [...Array(canvas.width).keys()].filter(x => at(x) !== ground);
    }""",
        color,
    )


def test_a_single_slow_step_among_120_000_is_seen(workbench: Workbench, long_run: str) -> None:
    """At half of the height there are bars only of steps of more than twice the usual length."""
    page = opened(workbench, long_run)
    width = page.evaluate("document.querySelector('.watch-room canvas').width")
    tall = columns_with(page, "90")
    at = HICCUP / STEPS * width
    assert any(abs(x - at) < 0.01 * width for x in tall)
    assert len(tall) < 0.1 * width


def test_a_row_of_the_bill_marks_its_steps_and_leads_from_one_to_the_next(
    workbench: Workbench, long_run: str
) -> None:
    page = opened(workbench, long_run)
    workbench.click(".watch-bill button.watch-row:has-text('checkpoints')")
    assert "6 steps marked" in text_of(workbench, ".watch-marked")
    workbench.click("[aria-label='Next marked step']")
    workbench.click("[aria-label='Next marked step']")
    assert "Step 39,999" in text_of(workbench, ".watch-explained h2")
    assert workbench.said["mark"] == "checkpoint"
    page.keyboard.press("Escape")
    workbench.until("!document.querySelector('.watch-marked')")


def test_keys_and_the_wheel_zoom_from_hours_to_one_step(workbench: Workbench, long_run: str) -> None:
    page = opened(workbench, long_run)
    workbench.click(".watch-bill button.watch-row:has-text('garbage') >> nth=-1")
    assert "Step 90,123 took" in text_of(workbench, ".watch-sentence")
    canvas = page.locator(".watch-room canvas")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 180)
    assert text_of(workbench, ".watch-tip").startswith("Step 90,123")
    before = workbench.said["window"]
    page.mouse.wheel(0, -200)
    workbench.until(f"!location.hash.includes('{before}')")
    page.keyboard.press("0")
    workbench.until("!location.hash.includes('window')")
    for _ in range(80):
        page.keyboard.press("w")
    start, end = map(int, workbench.said["window"].split("-"))
    assert end - start < 0.3 * S
    canvas.press("ArrowRight")
    chosen = int(workbench.said["step"])
    canvas.press("ArrowRight")
    assert int(workbench.said["step"]) == chosen + 1
    page.mouse.move(box["x"] + 100, box["y"] + 150)
    page.mouse.down()
    page.mouse.move(box["x"] + 300, box["y"] + 150, steps=3)
    page.mouse.up()
    workbench.until(f"!location.hash.includes('window={start}-')")


def test_a_click_on_a_slow_stretch_explains_it_and_names_its_recording(
    workbench: Workbench, long_run: str
) -> None:
    page = opened(workbench, long_run)
    canvas = page.locator(".watch-room canvas")
    box = canvas.bounding_box()
    page.keyboard.press("n")
    workbench.until("location.hash.includes('slow=')")
    page.keyboard.press("Escape")
    canvas.click(position={"x": box["width"] / 2, "y": 200})
    sentence = text_of(workbench, ".watch-sentence")
    assert sentence.startswith("Steps 50,000 to 50,399 took 1.77 times the usual")
    rows = page.locator(".watch-means").first.locator("tbody tr").all_inner_texts()
    (waiting,) = [row.replace("\u202f", " ").split("\t") for row in rows if "waiting for data" in row]
    assert [cell.strip() for cell in waiting[1:]] == ["87.0 ms", "2.00 ms", "+85.0 ms"]
    assert "stepscope view train-step50010.stepscope" in text_of(workbench, ".watch-actions")
    page.keyboard.press("0")
    workbench.until("!location.hash.includes('window=')")
    for share in (0.2, 0.3, 0.6):  # a click chooses the step that the tip has named
        where = {"x": box["width"] * share, "y": 200}
        page.mouse.move(0, 0)
        workbench.until("!document.querySelector('.watch-tip')")
        canvas.hover(position=where)
        longest = text_of(workbench, ".watch-tip").partition("(step ")[2].partition(")")[0]
        canvas.click(position=where)
        workbench.until(f"location.hash.includes('step={longest.replace(',', '')}')")
        assert text_of(workbench, ".watch-explained h2").startswith(f"Step {longest}")


def test_the_page_follows_a_run_and_keeps_its_zoom(
    workbench: Workbench, growing: tuple[WatchFile, dict[str, Any], str]
) -> None:
    file, facts, url = growing
    page = opened(workbench, url)
    assert "following" in text_of(workbench, ".watch-state")
    for _ in range(4):
        page.keyboard.press("w")
    window = workbench.said["window"]
    end_ns = add_steps(file, 300, 800, 33 * S)
    file.flush()
    workbench.until("document.querySelector('.watch-state').innerText.startsWith('800 steps')")
    assert workbench.said["window"] == window
    page.keyboard.press("0")
    (file.path.parent / "live-step500.stepscope").write_bytes(b"no recording")
    add_steps(file, 800, 810, end_ns)
    file.put_text({**facts, "outcome": "complete"})
    file.flush()
    workbench.until("document.querySelector('.watch-state').innerText.endsWith('complete')")
    link = page.get_by_role("link", name="Open the recording at step 500").first
    assert link.get_attribute("href") == "/index.html#trace=live-step500"


@pytest.mark.parametrize("width", [390, 1440])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_page_is_accessible(workbench: Workbench, long_run: str, theme: str, width: int) -> None:
    workbench.resize(width, 844)
    workbench.in_theme(theme)
    page = opened(workbench, long_run, "#mark=checkpoint")
    page.keyboard.press("n")
    page.locator(".watch-means").wait_for()
    workbench.until_it_fits()
    assert violations(page) == []
