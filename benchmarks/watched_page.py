"""The actions of `view.py` in a page, and its measurements: times, frames, memory.

Times are the browser's: marks that the page sets when a level is drawn, time stamps of input
events, animation frames. "Painted" is the first task after the frame in which a level was drawn: by
then the browser has painted that frame.
"""

from __future__ import annotations

import json
import random
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, Route

_CLICKS = 5
# Notes when each level was painted, and when the last press of the mouse began. The mark is watched
# where it is set, so that no frame passes before its own is asked for.
_WATCH = """
window.painted = []; window.pressed = 0;
addEventListener('pointerdown', event => { window.pressed = event.timeStamp; }, true);
const mark = performance.mark.bind(performance);
performance.mark = (name, about) => {
  if (name === 'level drawn') requestAnimationFrame(() => {
    const {port1, port2} = new MessageChannel();
    port1.onmessage = () => {
      window.painted.push({path: about.detail.path, at: performance.now()});
    };
    port2.postMessage(0);
  });
  return mark(name, about);
};
"""
_FRAMES = """
([seconds, resize]) => new Promise(done => {
  const begin = performance.now(), frames = [];
  const left = document.querySelector('.main'), full = left.clientWidth;
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


def open_page(browser: Any, url: str) -> Page:
    """A fresh page, with nothing kept from another, loaded until its levels are painted."""
    page: Page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
    page.add_init_script(_WATCH)
    page.goto(url)
    wait(page, "window.painted?.some(one => one.path !== '')")
    return page


def wait(page: Page, expression: str, seconds: float = 60) -> None:
    """Wait until an expression is true; the page's CSP lets nothing wait inside it."""
    until = time.monotonic() + seconds
    while not page.evaluate(expression):
        if time.monotonic() > until:
            raise TimeoutError(f"not true after {seconds} s: {expression}, at {page.url}")
        page.wait_for_timeout(5)


def first_paint_ms(page: Page) -> float:
    """From the start of loading to the stages of a step on screen."""
    return float(page.evaluate("window.painted.find(one => one.path !== '').at"))


def drill(page: Page, seed: random.Random, rest_s: float = 0.0) -> float:
    """Click on an operation of the lowest level, ms until the level inside it is painted.

    A level that was just painted may still move; a click that met nothing is made again.

    Args:
        page: the page.
        seed: chooses the operation.
        rest_s: how long the pointer rests on the operation before it is pressed.
    """
    for _ in range(_CLICKS):
        place = _wide_operation(page, seed)
        if place is None:
            return -1
        page.mouse.move(place["x"], place["y"])
        page.wait_for_timeout(1000 * rest_s)
        page.evaluate("window.painted = []")
        page.mouse.click(place["x"], place["y"])
        path = json.dumps(place["path"])
        shown = f"window.painted.some(one => one.path === {path})"
        with suppress(TimeoutError):
            wait(page, f"location.hash.includes({path}) && {shown}", seconds=3)
            found = f"window.painted.find(one => one.path === {path}).at - window.pressed"
            return float(page.evaluate(found))
    raise RuntimeError(f"{_CLICKS} clicks opened nothing, at {page.url}")


def _wide_operation(page: Page, seed: random.Random) -> dict[str, Any] | None:
    """Where to click for an operation of the lowest level that opens, None if there is none."""
    found: dict[str, Any] | None = page.evaluate(
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
          const window = document.querySelector('.stack').dataset;
          const [from, to] = [Number(window.from), Number(window.to)];
          const time = level.start_ns + (start_ns[one] + end_ns[one]) / 2;
          const middle = (time - from) / (to - from);
          return {x: box.left + box.width * middle, y: box.top + 10, path: `${path}/${id[one]}`};
        }""",
        seed.random(),
    )
    return found


def drills(page: Page, count: int, rest_s: float = 0.0) -> list[float]:
    """Random ways down from random steps, no operation twice; `rest_s` as for `drill`."""
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
            took = drill(page, seed, rest_s)
            if took < 0 or len(times) == count:
                break
            times.append(took)
    return times


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
    """The page's heap (from the browser) and its process's memory (from the kernel), MB."""
    heap = page.evaluate("performance.memory.usedJSHeapSize")
    processes = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    found = {"JavaScript heap, MB": heap / 1e6}
    own = [private_bytes(one["id"]) for one in processes if one["type"] == "renderer"]
    return found | {"largest page process, MB": max(own) / 1e6}


def private_bytes(process: int) -> int:
    """The memory that a process alone has."""
    text = Path(f"/proc/{process}/smaps_rollup").read_text()
    return sum(int(size) * 1024 for size in re.findall(r"Private_\w+:\s+(\d+) kB", text))


_MOVE = """
seconds => new Promise(done => {
  const begin = performance.now(), frames = [];
  const [x, y] = [innerWidth * 0.6, innerHeight * 0.27];
  const target = document.elementFromPoint(x, y);
  const zoom = deltaY => ({ctrlKey: true, deltaY}), pan = deltaX => ({deltaX});
  const ways = [zoom(-12), pan(24), pan(-24), zoom(12)];
  const step = now => {
    frames.push(now);
    const way = ways[Math.floor((now - begin) / 500) % ways.length];
    target.dispatchEvent(new WheelEvent('wheel',
      {bubbles: true, cancelable: true, clientX: x, clientY: y, ...way}));
    if (now - begin < seconds * 1000) requestAnimationFrame(step); else done(frames);
  };
  requestAnimationFrame(step);
})
"""


def whole_trace(page: Page) -> Page:
    """The page with all steps on its time axis, painted."""
    page.evaluate("window.painted = []; location.hash = '#path='")
    wait(page, "window.painted.some(one => one.path === '')")
    page.wait_for_timeout(2000)  # for the slices of its tracks
    return page


def moving_frames(page: Page, seconds: float) -> dict[str, float]:
    """Frame times while the wheel zooms in, pans and zooms out, one event a frame.

    The same for our page and for Perfetto's: both zoom with Ctrl, and pan with a wheel to the side.

    Raises:
        RuntimeError: if the timeline did not move.
    """
    before = page.screenshot()
    page.evaluate(_MOVE, 0.45)  # zooms in, and stays there
    page.wait_for_timeout(1000)
    if page.screenshot() == before:
        raise RuntimeError("the timeline did not move")
    times = np.diff(page.evaluate(_MOVE, seconds))
    return {
        "frames a second": 1000 / float(times.mean()),
        "frame, median ms": float(np.median(times)),
        "frame, 95th percentile ms": float(np.percentile(times, 95)),
        "frame, most ms": float(times.max()),
    }
