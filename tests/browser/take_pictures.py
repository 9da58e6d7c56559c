"""Pictures of every pane of several traces at every width, in both themes, to be looked at.

    python tests/browser/take_pictures.py [TRACE...] [--only NAME...] [--panes ID...] [--out FOLDER]
    python tests/browser/take_pictures.py --docs    # those of docs/images but for the editor's

Without TRACE it takes the shared traces below, records two captures of its own, and generates a
million slices and a trace of kernels alone. Each picture is `NAME/PANE-WIDTH-THEME.png`; `zoomed`
is a window of 1440 px at 200 % browser zoom. What a person cannot see in a picture is printed:
errors of the page, what hangs over its edge, and what axe-core objects to.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from served_page import ROOT, serving
from violations import violations

_TRACES = Path(os.environ.get("STEPSCOPE_TRACES", ROOT.parent / "shared" / "traces"))
# Width and height of the window in CSS pixels, and device pixels for each.
_SIZES = {
    "390": (390, 844, 1),
    "1024": (1024, 768, 1),
    "1440": (1440, 900, 1),
    "1920": (1920, 1080, 1),
    "zoomed": (720, 450, 2),
}
_SHARED: dict[str, list[str]] = {
    "resnet": ["kineto_resnet50_v100/num_workers_0.json.gz", "--model", "examples/resnet50.model.json"],
    "dlrm": ["dlrm_8rank_v100"],
    "ddp": ["resnet_ddp_mi300x/rank0_act_checkpoint.json.gz"],
    "jax": ["jax_xplane/conv_mi300x.xplane.pb"],
    "nsys": ["nsys_sqlite/h100_2gpu_1s.sqlite"],
    "memory": ["memory_snapshots/transformer_cuda.pickle"],
    "mtia": ["mtia_training/rank0.json.gz"],
    "pair": ["pair_h100_mi300x/bert_small_h100.json.gz", "pair_h100_mi300x/bert_small_mi300.json.gz"],
}
# Of each picture in docs/images: what `stepscope view` is given, and what is clicked.
_DOCS: dict[str, tuple[list[str], str]] = {
    "view": (_SHARED["resnet"], '[data-stage="backward"]'),
    "pair_workers": (
        [f"kineto_resnet50_v100/num_workers_{count}.json.gz" for count in (0, 4)],
        'button:text-is("Other run")',
    ),
    "pair_a100_v100": (
        ["diff_a100_v100/v100_rank1of2.json.gz", "diff_a100_v100/a100_rank3of8.json.gz"],
        'button:text-is("Other run")',
    ),
    "pair_h100_mi300x": (_SHARED["pair"], 'button:text-is("Other run")'),
}
_RECORDED = {"capture": ["--warmup", "1", "--steps", "2"], "contexts": ["--contexts"]}


def record(name: str, folder: Path) -> Path:
    """A run of examples/train_resnet.py as one of the captures."""
    file = folder / f"{name}.stepscope"
    if not file.exists():
        command = [sys.executable, "-m", "stepscope", "run", *_RECORDED[name], "-o", str(file)]
        subprocess.run([*command, "examples/train_resnet.py"], cwd=ROOT, check=True)
    return file


def million(folder: Path) -> Path:
    """A generated trace of a million slices."""
    file = folder / "million.json"
    if not file.exists():
        sys.path.append(str(ROOT / "benchmarks"))
        from big_trace import write_trace

        write_trace(file, 1_000_000)
    return file


def kernels_alone(folder: Path) -> Path:
    """Repeated kernels on two streams, without operators or calls, as some recorders write them."""
    names = ("ampere_sgemm_128x64_tn", "vectorized_elementwise_kernel", "ncclDevKernel_AllReduce")
    events = [
        {
            "ph": "X",
            "cat": "kernel",
            "name": name,
            "pid": 0,
            "tid": 7 + (number == 2),
            "ts": 1000 * step + 300 * number,
            "dur": 250 - 40 * number,
            "args": {"device": 0, "stream": 7 + (number == 2)},
        }
        for step in range(20)
        for number, name in enumerate(names)
    ]
    file = folder / "kernels.json"
    file.write_text(json.dumps(events))
    return file


_GENERATED: dict[str, Callable[[Path], Path]] = {"million": million, "kernels": kernels_alone}


def arguments_of(name: str, folder: Path) -> list[str]:
    """What `stepscope view` is given for a name."""
    if name in _RECORDED:
        return [str(record(name, folder))]
    if name in _GENERATED:
        return [str(_GENERATED[name](folder))]
    return shared(_SHARED[name])


def shared(parts: list[str]) -> list[str]:
    """The arguments, with the paths of shared traces."""
    paths = [_TRACES / part for part in parts]
    return [str(path) if path.exists() else part for path, part in zip(paths, parts, strict=True)]


def settle(page: Any) -> None:
    """Wait until all that was asked for is drawn."""
    page.wait_for_timeout(60)
    for _ in range(2400):
        if page.evaluate("!('busy' in document.documentElement.dataset)"):
            break
        page.wait_for_timeout(50)
    page.wait_for_timeout(60)


def take(page: Any, folder: Path, label: str) -> None:
    """One picture, and a line for what is wrong with it."""
    settle(page)
    page.screenshot(path=folder / f"{label}.png")
    overhang = page.evaluate("document.documentElement.scrollWidth - innerWidth")
    if overhang > 0:
        print(f"{folder.name}/{label}: hangs over its edge by {overhang} px")
    for violation in violations(page):
        print(f"{folder.name}/{label}: {violation}")


def photograph(page: Any, folder: Path, size: str, theme: str, panes: list[str]) -> None:
    """The first view, then each pane, and the details of what is chosen first."""
    label = f"{size}-{theme}"
    page.locator(".pane").first.wait_for()
    take(page, folder, f"first-{label}")
    for tab in page.get_by_role("tab").all():
        pane = (tab.get_attribute("id") or "")[4:]
        if panes and pane not in panes:
            continue
        tab.click()
        take(page, folder, f"{pane}-{label}")
        if pane == "kernels" and page.locator('[data-action="roofline"]').count():
            page.locator('[data-action="roofline"]').click()
            take(page, folder, f"roofline-{label}")
    if page.locator("#tab-overview").count() and not panes:
        page.locator("#tab-overview").click()
        page.keyboard.press("g")
        take(page, folder, f"details-{label}")
    if not panes:
        page.keyboard.press("?")
        take(page, folder, f"help-{label}")
        page.keyboard.press("Escape")


def all_pictures(name: str, arguments: list[str], out: Path, sizes: list[str], panes: list[str]) -> None:
    """Each size and theme of one command line of `stepscope view`."""
    from playwright.sync_api import sync_playwright

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    program = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    with serving(out, *arguments) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context()
        state = None
        for size in sizes:
            width, height, scale = _SIZES[size]
            for theme in ("light", "dark"):
                context = browser.new_context(
                    viewport={"width": width, "height": height},
                    device_scale_factor=scale,
                    color_scheme=theme,
                    storage_state=state,
                )
                page = context.new_page()
                page.on("pageerror", lambda error: print(f"{name}: {error}"))
                page.goto(url if state is None else url.split("?")[0])
                photograph(page, folder, size, theme, panes)
                state = context.storage_state()
                context.close()
        browser.close()


def job_of_1024(folder: Path) -> Path:
    """The page of a generated job in which one machine is slow."""
    sys.path.append(str(ROOT / "benchmarks"))
    from ranks_page import slow_machine, written

    return written(slow_machine(1024, 48), folder)


def docs_pictures(home: Path) -> None:
    """The pictures of the documentation, in a window of 1440 px in the light theme."""
    from playwright.sync_api import sync_playwright

    program, images = os.environ.get("STEPSCOPE_CHROMIUM", "/usr/bin/chromium"), ROOT / "docs" / "images"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        for name, (parts, clicked) in _DOCS.items():
            with serving(home, *shared(parts)) as url:
                page = browser.new_page(viewport={"width": 1440, "height": 900})
                page.goto(url)
                page.locator(clicked).first.click(timeout=120_000)
                take(page, images, name)
        page = browser.new_page(viewport={"width": 1440, "height": 1150})
        page.goto(job_of_1024(home).as_uri())
        page.locator(".job-findings button").first.click()
        take(page, images, "ranks")
        browser.close()


def main() -> None:
    """Take the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("traces", nargs="*", metavar="TRACE")
    parser.add_argument("--only", nargs="*", default=[*_SHARED, *_RECORDED, *_GENERATED])
    parser.add_argument("--sizes", nargs="*", default=[*_SIZES], choices=[*_SIZES])
    parser.add_argument("--panes", nargs="*", default=[])
    parser.add_argument("--docs", action="store_true", help="take those of the documentation")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "screenshots")
    asked = parser.parse_args()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.docs:
        docs_pictures(asked.out)
        return
    if asked.traces:
        all_pictures("given", asked.traces, asked.out, asked.sizes, asked.panes)
        return
    for name in asked.only:
        arguments = arguments_of(name, asked.out)
        all_pictures(name, arguments, asked.out, asked.sizes, asked.panes)


if __name__ == "__main__":
    main()
