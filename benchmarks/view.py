"""What the page costs: first paint, drilling down, frames while hovering and resizing, memory.

    python benchmarks/view.py [--slices N] [--rounds N] [--drills N] [--json OUT]

`stepscope view` of a generated trace in a separate process, and Chromium through Playwright,
drawing without a GPU; `watched_page.py` defines the figures.
"""

from __future__ import annotations

import argparse
import json
import os
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

import numpy as np
from big_trace import write_trace
from flat_level import flat_level
from playwright.sync_api import sync_playwright
from watched_page import drills, first_paint_ms, frames, memory, open_page, show_flat

import stepscope

_URL = re.compile(r"http://127\.0\.0\.1:\d+/\S*")


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
            # Each process has its own token, spent by the first visit; a new one is asked for.
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
