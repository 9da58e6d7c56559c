"""The page about a whole job: time to its answer and first paint, and frames while the mouse moves.

    python benchmarks/ranks_page.py [--ranks 1024] [--steps 48] [--seconds 5]

The sketches are those of a generated job (`generated_jobs`) with a slow machine. `reduce` is from
kept sketches to the page's HTML; `first paint` is from opening that file in Chromium, drawing
without a GPU, to the map on screen; `frames` are while the mouse moves over the map.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from generated_jobs.faults import faults
from generated_jobs.job import Job as GeneratedJob
from generated_jobs.sketches import sketches
from generated_jobs.template import template
from playwright.sync_api import Page, sync_playwright

from stepscope.faces.page.job_answer import job_answer, job_page
from stepscope.models.ranks import Sketch
from stepscope.models.ranks.job import Job, report_of
from stepscope.models.ranks.map_ranks import RankResult

_MAP = ".heat canvas"
_FRAMES = """
async (ms) => {
  const times = [];
  const begin = performance.now();
  while (performance.now() - begin < ms) times.push(await new Promise(requestAnimationFrame));
  return times;
}
"""
# The mouse itself would wait for the driver, so events move over the map from inside the page.
_MOVES = """
() => {
  const map = document.querySelector(".heat canvas");
  const box = map.getBoundingClientRect();
  const move = (now) => {
    const clientX = box.left + box.width * (0.5 + 0.5 * Math.sin(now / 300));
    const clientY = box.top + box.height * (0.5 + 0.5 * Math.cos(now / 700));
    map.dispatchEvent(new PointerEvent("pointermove", { clientX, clientY, bubbles: true }));
    requestAnimationFrame(move);
  };
  requestAnimationFrame(move);
}
"""


def slow_machine(ranks: int, steps: int) -> list[Sketch]:
    """A generated job in which one machine is slow."""
    planted = faults("slow_node", 1, ranks)
    return sketches(GeneratedJob("dlrm", template("dlrm", 8), ranks, steps, planted, 0.01, 1))


def written(made: list[Sketch], folder: Path) -> Path:
    """The page of a job as a file."""
    job = Job.of(made)
    results = [RankResult(f"/job/{one.node}/rank{one.rank}.json", one) for one in made]
    file = folder / "job.html"
    file.write_text(job_page(job_answer(f"dlrm-{len(made)}", job, report_of(job), results)))
    return file


def first_paint_ms(page: Page, file: Path) -> float:
    """From opening the file to the map on screen."""
    page.goto(file.as_uri())
    page.locator(_MAP).first.wait_for()
    painted: float = page.evaluate("new Promise(requestAnimationFrame)")
    return painted


def frames_ms(page: Page, seconds: float) -> np.ndarray:
    """Times between frames while the mouse moves over the upper map."""
    page.evaluate(_MOVES)
    return np.diff(page.evaluate(_FRAMES, 1e3 * seconds))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=48)
    parser.add_argument("--seconds", type=float, default=5)
    args = parser.parse_args()
    made = slow_machine(args.ranks, args.steps)
    with TemporaryDirectory() as folder, sync_playwright() as playwright:
        begin = time.perf_counter()
        file = written(made, Path(folder))
        print(
            f"load {os.getloadavg()[0]:.1f}; reduce {time.perf_counter() - begin:.2f} s, "
            f"{file.stat().st_size / 1e6:.1f} MB of HTML"
        )
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1440, "height": 900})
        print(f"first paint {first_paint_ms(page, file):.0f} ms")
        frames = frames_ms(page, args.seconds)
        print(
            f"{1e3 / frames.mean():.0f} frames per second while moving over {args.ranks} ranks; "
            f"95 % within {np.percentile(frames, 95):.1f} ms"
        )
        browser.close()


if __name__ == "__main__":
    main()
