"""A drawn step as a single file holds it, and the server's answers about each part of it.

    PYTHONPATH=src python tests/unit/faces/page/step_fixture.py

writes them to `web/test/step.json`, where a test of the page reads them.
"""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from serving import ask, opened

from stepscope.faces.page.step_answers import details_of_levels, step_of_levels

FILE = Path(__file__).parents[4] / "web" / "test" / "step.json"
STEP = """
    main     |   0 200 | ProfilerStep#1
    main     |   1  99 | stepscope.module:
    main     |   2  60 | stepscope.module:fc
    main     |   4  20 | aten::linear         | seq=1 Input_Dims=[[4,3]]
    main     |   5   7 | cudaLaunchKernel     | corr=1
    main     |  22  24 | aten::add
    main     |  25  26 | aten::mul
    main     |  61  90 | aten::relu
    main     |  62  64 | cudaLaunchKernel     | corr=2
    loader   |  10  50 | aten::stack
    loader   |  12  18 | aten::copy_
    autograd | 105 160 | autograd::engine::evaluate_function: AddmmBackward0 | seq=1 fwd=1
    autograd | 110 112 | cudaLaunchKernel     | corr=3
    stream 7 |  30  60 | sgemm                | corr=1 grid=[8,1,1]
    stream 7 |  66  80 | relu_kernel          | corr=2
    stream 9 | 120 190 | sgemm_nt             | corr=3
"""
MODEL = {"name": "net", "class": "Net", "children": [{"name": "fc", "path": "fc", "class": "Linear"}]}


def fixture() -> dict[str, object]:
    """The columns of the step, and the answers of the server."""
    view = opened(STEP, MODEL)
    openings = view.timeline.open_all("s1.0")
    step = msgspec.to_builtins(step_of_levels(view, "s1.0", openings))
    details = msgspec.to_builtins(details_of_levels(view, "s1.0", openings))
    paths = [path for one in openings for path in one.every.paths]
    levels = ["/".join(one.every.path) for one in openings]
    return {
        "step": step,
        "step_details": details,
        "levels": [
            {"every": every, "level": ask(view, "level", path=path, every=every)["level"]}
            for path in levels
            for every in (0, 1)
        ],
        "details": [ask(view, "details", path=path) for path in ["s1.0", *paths]],
        "places": [ask(view, "path", event=event) for event in step["events"]["event"]],
    }


def text() -> str:
    """The file's text."""
    return json.dumps(fixture(), ensure_ascii=False, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    FILE.write_text(text(), "utf-8")
