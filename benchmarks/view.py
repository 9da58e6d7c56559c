"""What the page costs: first paint, drilling down, frames while hovering and resizing, memory.

    python benchmarks/view.py [--slices N] [--rounds N] [--drills N] [--json OUT]

`stepscope view` of a generated trace in a process of its own, and Chromium through Playwright,
drawing without a GPU. Times are the browser's: marks that the page sets when a level is drawn, time
stamps of input events, animation frames. "Painted" is the second animation frame after a level was
drawn: by then the browser has painted it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from big_trace import write_trace
from playwright.sync_api import Page, Route, sync_playwright

import stepscope
from stepscope.trace.trace import Trace

ROOT = Path(__file__).parents[1]
_URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*")

# Notes when each level was painted, and when the last press of the mouse began.
_WATCH = """
window.painted = []; window.pressed = 0;
addEventListener('pointerdown', event => { window.pressed = event.timeStamp; }, true);
new PerformanceObserver(list => list.getEntries().forEach(mark => {
  if (mark.name !== 'level drawn') return;
  requestAnimationFrame(() => requestAnimationFrame(now => {
    window.painted.push({path: mark.detail.path, at: now});
  }));
})).observe({type: 'mark', buffered: true});
"""
_FRAMES = """
([seconds, resize]) => new Promise(done => {
  const begin = performance.now(), frames = [];
  const left = document.querySelector('.left'), full = left.clientWidth;
  const step = now => {
    frames.push(now);
    if (resize) left.style.width = `${full * (0.8 + 0.2 * Math.cos((now - begin) / 300))}px`;
    if (now - begin < seconds * 1000 || frames.length < 10) requestAnimationFrame(step);
    else { left.style.width = ''; done(frames); }
  };
  requestAnimationFrame(step);
})
"""
_WALK_POINTER = """
seconds => {
  const begin = performance.now();
  const level = [...document.querySelectorAll('.level')].at(-1);
  const canvas = level.querySelector('canvas[aria-hidden]');
  const box = level.querySelector('.level-bars').getBoundingClientRect();
  const rows = [...level.querySelectorAll('.row-name')].map(row => row.offsetTop);
  let steps = 0;
  window.met = 0;
  window.walking = true;
  const step = now => {
    window.met += document.querySelectorAll('.tooltip-name').length;
    const x = box.width * (0.5 + 0.49 * Math.sin((now - begin) / 400));
    const y = rows[(now / 200 | 0) % rows.length] + 8;
    canvas.dispatchEvent(new PointerEvent('pointermove',
      {bubbles: true, clientX: box.left + x, clientY: box.top + y}));
    window.walking = now - begin < seconds * 1000 || ++steps < 60;
    if (window.walking) requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
}
"""


@contextmanager
def serving(trace: Path, cache: Path) -> Iterator[str]:
    """`stepscope view`, once it has read the trace; gives its URL."""
    command = [sys.executable, "-m", "stepscope", "view", str(trace), "--no-browser"]
    environment = os.environ | {"STEPSCOPE_CACHE": str(cache), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        lines = iter(process.stdout.readline, "")
        url = next(found[0] for line in lines if (found := _URL.search(line)))
        wait_until_read(url)
        yield url
    finally:
        process.terminate()
        process.communicate(timeout=60)


def wait_until_read(url: str) -> None:
    """Poll until the server is ready; this is what the time to the first paint begins at."""
    base, _, token = url.partition("/?token=")
    request = urllib.request.Request(
        f"{base}/api/traces", headers={"Authorization": f"Bearer {token}"}
    )
    while True:
        with urllib.request.urlopen(request) as answer:
            if json.load(answer)["traces"][0]["state"] != "loading":
                return
        time.sleep(0.05)


def open_page(browser: Any, url: str) -> Page:
    """A fresh page, with nothing kept from another, loaded until its levels are painted."""
    page: Page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.add_init_script(_WATCH)
    page.goto(url)
    wait(page, "window.painted?.some(one => one.path !== '')")
    return page


def wait(page: Page, expression: str) -> None:
    """Wait until an expression is true; the page's CSP lets nothing wait inside it."""
    while not page.evaluate(expression):
        page.wait_for_timeout(5)


def first_paint_ms(page: Page) -> float:
    """From the start of loading to the stages of a step on screen."""
    return float(page.evaluate("window.painted.find(one => one.path !== '').at"))


def drill(page: Page, seed: random.Random) -> float:
    """Click on an operation of the lowest level, ms until the level inside it is painted."""
    place = page.evaluate(
        """async roll => {
          const trace = (await (await fetch('/api/traces')).json()).traces[0].id;
          const path = new URLSearchParams(location.hash.slice(1)).get('path');
          const level = (await (await fetch(
            `/api/traces/${trace}/level?path=${encodeURIComponent(path)}`)).json()).level;
          const {id, opens, start_ns, end_ns} = level.operations;
          const wide = id.map((_, i) => i).filter(
            i => opens[i] && start_ns[i] >= 0 && end_ns[i] - start_ns[i] > level.length_ns / 100);
          if (!wide.length) return null;
          const one = wide[Math.floor(roll * wide.length)];
          const rows = document.querySelector(`.level[data-level="${path}"] .level-rows`);
          rows.scrollIntoView({block: 'center'});
          const box = rows.querySelector('.level-bars').getBoundingClientRect();
          const middle = (start_ns[one] + end_ns[one]) / 2 / level.length_ns;
          return {x: box.left + box.width * middle, y: box.top + 10, path: `${path}/${id[one]}`};
        }""",
        seed.random(),
    )
    if place is None:
        return -1
    page.mouse.move(place["x"], place["y"])
    page.evaluate("window.painted = []")
    page.mouse.click(place["x"], place["y"])
    path = json.dumps(place["path"])
    wait(page, f"location.hash.includes({path}) && window.painted.some(one => one.path === {path})")
    found = f"window.painted.find(one => one.path === {path}).at - window.pressed"
    return float(page.evaluate(found))


def drills(page: Page, count: int) -> list[float]:
    """Random ways down from random steps, no operation twice."""
    seed, times = random.Random(0), []
    steps = page.evaluate(
        """async () => {
          const trace = (await (await fetch('/api/traces')).json()).traces[0].id;
          return (await (await fetch(`/api/traces/${trace}/overview`)).json()).steps
            .map(one => one.id);
        }"""
    )
    while len(times) < count:
        step = seed.choice(steps)
        page.evaluate(f"location.hash = '#path={step}'")
        wait(page, f"!!document.querySelector('.level[data-level=\"{step}\"]')")
        for _ in range(8):
            took = drill(page, seed)
            if took < 0 or len(times) == count:
                break
            times.append(took)
    return times


def flat_level(trace: Trace, count: int) -> dict[str, Any]:
    """A level of `count` bars, half operators and half kernels, as recorded in one step.

    The timeline itself folds and never lists so many; this takes the place of one answer.
    """
    events, launches = trace.events, trace["launches"]
    calls = events["parent"][launches["cpu_event"]]
    step = events["step"][launches["cpu_event"]]
    keep = np.flatnonzero((calls >= 0) & (step == np.bincount(step[step >= 0]).argmax()))
    if len(keep) < count // 2:
        raise ValueError(f"expected {count // 2} launches in one step, found {len(keep)}")
    keep = keep[: count // 2]
    cpu, device = calls[keep], launches["device_event"][keep]
    start, length = events["start_ns"], events["duration_ns"]
    begin = int(start[cpu].min())
    ends = [int((start[rows] + length[rows]).max()) - begin for rows in (cpu, device)]
    names = events.text("name")
    texts = sorted({names[row] or "" for row in (*cpu.tolist(), *device.tolist())})
    code = {text: number for number, text in enumerate(texts)}
    columns = {"cpu": cpu, "device": device}
    spans = {
        side: {
            "start_ns": (start[rows] - begin).tolist(),
            "end_ns": (start[rows] + length[rows] - begin).tolist(),
            "ns": length[rows].tolist(),
            "name": [code[names[row] or ""] for row in rows.tolist()],
            "resource": events["track"][rows].tolist(),
        }
        for side, rows in columns.items()
    }
    return _wire(spans, max(ends), len(keep), trace, texts)


def _wire(
    spans: dict[str, dict[str, list[Any]]], length: int, size: int, trace: Trace, texts: list[str]
) -> dict[str, Any]:
    cpu, device = spans["cpu"], spans["device"]
    none, once = [-1] * size, [1] * size
    tracks = trace["tracks"]
    shown = [
        {"id": one, "kind": "cpu" if one in cpu["resource"] else "device", "rank": 0,
         "name": tracks.text("name")[one], "busy_ns": 0, "shown": True}
        for one in sorted({*cpu["resource"], *device["resource"]})
    ]  # fmt: skip
    operations = {
        "id": [f"e{i}" for i in range(size)], "name": cpu["name"], "kind": [len(texts)] * size,
        "resource": cpu["resource"], "start_ns": cpu["start_ns"], "end_ns": cpu["end_ns"],
        "cpu_ns": cpu["ns"], "self_ns": cpu["ns"], "recompute_ns": [0] * size,
        "device_ns": device["ns"], "bound_by": [len(texts) + 1] * size, "events": once,
        "event": none, "module": none, "recompute": [0] * size, "forward": none,
        "backward": none, "launch": none, "count": once, "least_ns": none, "mean_ns": none,
        "most_ns": none, "slowest": [""] * size, "opens": [0] * size,
    }  # fmt: skip
    parts = {
        "operation": list(range(size)), "resource": device["resource"], "name": device["name"],
        "event": none, "start_ns": device["start_ns"], "end_ns": device["end_ns"],
        "busy_ns": device["ns"], "count": once,
    }  # fmt: skip
    return {
        "name": f"{2 * size} bars", "through": [], "start_ns": 0, "length_ns": length,
        "shift_ns": 0, "passed": 0, "hidden": 0, "resources": shown, "operations": operations,
        "device": parts, "strings": [*texts, "event", "device"],
    }  # fmt: skip


def show_flat(browser: Any, url: str, level: dict[str, Any]) -> Page:
    """A page whose lowest level is the flat one."""
    page: Page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.add_init_script(_WATCH)

    def answer(route: Route) -> None:
        found = route.fetch().json()
        last = found["levels"][-1]
        found["levels"][-1] = level | {"path": last["path"]}
        route.fulfill(json=found)

    page.route("**/levels?*", answer)
    page.goto(url)
    wait(page, "window.painted?.some(one => one.path !== '')")
    return page


def frames(page: Page, seconds: float, resize: bool) -> dict[str, float]:
    """Frames a second, and how long the slower ones took, ms."""
    if not resize:
        page.evaluate(_WALK_POINTER, seconds)
    times = np.diff(page.evaluate(_FRAMES, [seconds, resize]))
    if not resize:
        wait(page, "!window.walking")
        if not page.evaluate("window.met"):
            raise RuntimeError("the pointer met no bar")
    return {
        "frames a second": 1000 / float(times.mean()),
        "frame, median ms": float(np.median(times)),
        "frame, 95th percentile ms": float(np.percentile(times, 95)),
    }


def memory(browser: Any, page: Page) -> dict[str, float]:
    """The page's heap as the browser tells it, and its process as the kernel does, MB."""
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    found = {"JavaScript heap, MB": heap / 1e6}
    own = [_private_bytes(one["id"]) for one in processes if one["type"] == "renderer"]
    return found | {"largest page process, MB": max(own) / 1e6}


def _private_bytes(process: int) -> int:
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"Private_\w+:\s+(\d+) kB", text))


@dataclass(frozen=True)
class Size:
    """How much is measured: slices of the trace, servers, drill-downs, bars, seconds of frames."""

    slices: int = 1_000_000
    rounds: int = 5
    drills: int = 100
    bars: int = 20_000
    seconds: float = 4.0


def measure(size: Size, folder: Path) -> dict[str, float]:
    """All figures, each the median over the rounds where it is taken in each."""
    trace = write_trace(folder / "generated.json", size.slices)
    cache = folder / "cache"
    program = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    paints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=program, args=["--no-sandbox", "--disable-gpu"]
        )
        for _ in range(size.rounds - 1):
            with serving(trace, cache) as url:
                page = open_page(browser, url)
                paints.append(first_paint_ms(page))
                page.context.close()
        with serving(trace, cache) as url:
            page = open_page(browser, url)
            paints.append(first_paint_ms(page))
            times = drills(page, size.drills)
            used = memory(browser, page)
            page.context.close()
            # Each process has a token of its own, spent by the first visit; a new one is asked for.
            page = show_flat(browser, url, flat_level(stepscope.open(trace), size.bars))
            hovering = frames(page, size.seconds, resize=False)
            resizing = frames(page, size.seconds, resize=True)
            with_many = memory(browser, page)
        browser.close()
    return {
        "first useful paint, median ms": float(np.median(paints)),
        "first useful paint, most ms": max(paints),
        "drill-down painted, median ms": float(np.median(times)),
        "drill-down painted, 95th percentile ms": float(np.percentile(times, 95)),
        **{f"hovering: {name}": value for name, value in hovering.items()},
        **{f"resizing: {name}": value for name, value in resizing.items()},
        **{f"after {size.drills} drill-downs: {name}": value for name, value in used.items()},
        **{f"with {size.bars} bars: {name}": value for name, value in with_many.items()},
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    parser.add_argument("--json", type=Path)
    arguments = vars(parser.parse_args())
    out = arguments.pop("json")
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Size(**arguments), Path(folder))
    print(f"load average {os.getloadavg()[0]:.1f}")
    for name, value in found.items():
        print(f"{name:<60} {value:8.1f}")
    if out:
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
