"""Ten notebooks, whose cells a kernel executes one after the other; it needs nbclient and ipykernel."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

JOB = Path(__file__).parents[1] / "fuzz/corpus/commands/job.json"
TRAIN = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
optimizer = torch.optim.SGD(model.parameters())
for _ in range(10):
    model(torch.ones(32, 64)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""
OPEN = f"import stepscope\ntrace = stepscope.open({str(JOB)!r})"
# By name: its cells, and what the output of the last one says.
NOTEBOOKS: dict[str, tuple[list[str], str]] = {
    "a report": ([OPEN, "trace"], "forward"),
    "recorded steps": (["%load_ext stepscope", "%%stepscope --warmup 2 --steps 3" + TRAIN], "backward"),
    "recorded memory": (["%%stepscope --memory --warmup 2 -o memory.stepscope" + TRAIN], "memory"),
    "what a cell defines": (["%%stepscope -o again.stepscope" + TRAIN, "len(optimizer.param_groups)"], "1"),
    "findings": (
        [
            OPEN,
            "from stepscope.analyze import RULES, RuleContext\n"
            "from stepscope.analyze.analysis import analysis_of\n"
            "analysis_of(RuleContext(trace), RULES)",
        ],
        "Batches have 8 rows",
    ),
    "a prediction": (
        [
            OPEN,
            "from stepscope.graph.build_graph import build_graph\n"
            "from stepscope.models.whatif import CHANGES, parse_request, predict\n"
            "predict(build_graph(trace), [parse_request('dataloader', CHANGES)])",
        ],
        "predicted",
    ),
    "a comparison": (
        [OPEN, "from stepscope.models.diff import compare", "compare(trace, trace)"],
        "B takes as long as A",
    ),
    "SQL as a data frame": (
        [OPEN, "trace.query('select step, end_ns - start_ns as ns from steps').to_pandas()"],
        "ns",
    ),
    "a table": ([OPEN, "frame = trace['events'].to_pandas()", "frame[['name', 'stage']].head()"], "stage"),
    "a trace without steps": (
        ["from stepscope.testing import drawn_trace", "drawn_trace('main | 0 10 | aten::mm')"],
        "<Trace (drawn): events 1",
    ),
}


async def executed(folder: Path) -> dict[str, Any]:
    """The notebooks with their outputs, all of one kernel."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    cells = nbformat.v4
    made = {
        name: cells.new_notebook(cells=list(map(cells.new_code_cell, sources)))
        for name, (sources, _) in NOTEBOOKS.items()
    }
    first = nbclient.NotebookClient(
        cells.new_notebook(), timeout=600, resources={"metadata": {"path": folder}}
    )
    async with first.async_setup_kernel():
        for notebook in made.values():
            first.nb = notebook
            for index, cell in enumerate(notebook.cells):
                await first.async_execute_cell(cell, index)
    return made


@pytest.mark.full
def test_ten_notebooks_show_what_they_compute(tmp_path: Path) -> None:
    pytest.importorskip("ipykernel")
    notebooks = asyncio.run(executed(tmp_path))
    for name, notebook in notebooks.items():
        data = notebook.cells[-1].outputs[-1]["data"]
        picture = data.get("text/html", "")
        is_picture = picture.startswith("<svg")
        shown = "".join(ElementTree.fromstring(picture).itertext()) if is_picture else picture
        assert NOTEBOOKS[name][1] in (shown or data["text/plain"]).replace("\xa0", " "), name
