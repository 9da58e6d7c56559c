"""The language server, asked by a real client over its real streams; measuring is scripted.

What is measured is told by a file beside the entry file, so that a test decides what comes of a
save: costs, a problem, or a measurement that never ends. Measuring for real: test_lsp_measures.py.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import pytest_lsp
from lsprotocol import types as lsp
from pytest_lsp import ClientServerConfig, LanguageClient, make_test_lsp_client

pytestmark = pytest.mark.asyncio

SERVER = """
import asyncio, json, sys
from pathlib import Path
from stepscope.models.batch_size.breakdown import LineBreakdown, ModuleTime
from stepscope.faces.editor.measuring import FileCosts, Measured, Problem
from stepscope.faces.editor.features import language_server
from stepscope.faces.editor.measuring import MeasureError

class Scripted:
    async def __call__(self, request, report):
        entry = request.entry
        report("first steps", 0.5)
        told = json.loads(Path(entry + ".json").read_text())
        if "hang" in told:
            await asyncio.sleep(1000)
        if "problem" in told:
            raise MeasureError(Problem(told["problem"], told.get("path", entry), told["line"]))
        text = Path(entry).read_text().splitlines()
        lines = {int(n): LineBreakdown(file=entry, line=int(n), ms=3 * ms, forward_ms=ms,
                                  backward_ms=2 * ms, weights_bytes=weights,
                                  modules=[ModuleTime(name, 3 * ms)])
                 for n, (name, ms, share, weights) in told["lines"].items()}
        step_ms = max((3 * ms / share for _, ms, share, _ in told["lines"].values()), default=0.0)
        files = {entry: FileCosts(text, lines, step_ms)}
        return Measured(entry, files, told.get("batch"), told.get("findings", ()),
                        settings=told.get("settings", ()))
    def describe_run(self, entry, settings):
        return f"stepscope runs {Path(entry).name}."
    prepared = 0
    def prepare(self): self.prepared += 1
    async def close(self): pass

scripted = Scripted()
server = language_server(scripted)
server.feature("test/prepared")(lambda params: scripted.prepared)
server.start_io()
"""

MODEL = """import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return self.second(self.first(x))

loader = torch.utils.data.DataLoader(data, batch_size=32)  # für alle
for x in loader:
    net(x).sum().backward()
    optimizer.step()
"""
COSTS = {
    "lines": {"5": ["first", 4.0, 0.6, 2_000_000]},
    "batch": {
        "now": {"batch": 32, "throughput": 400.0},
        "suggestions": [{"batch": 48, "throughput": 512.0, "bytes": 9_100_000_000}],
    },
    "findings": [
        {
            "rule": "input_bound",
            "severity": "warning",
            "what": "The step waits.",
            "advice": "Load ahead.",
            "evidence": [{"file": "ENTRY", "line": 8}],
        }
    ],
}


def make_client(*_: Any) -> LanguageClient:
    client = make_test_lsp_client()
    client.told = []  # type: ignore[attr-defined]
    for name in ("stepscope/state", "stepscope/marks"):
        client.feature(name)(lambda params, name=name: client.told.append((name, params)))
    return client


CONFIG = ClientServerConfig(server_command=[sys.executable, "-c", SERVER], client_factory=make_client)


@pytest_lsp.fixture(config=CONFIG)
async def client(lsp_client: LanguageClient, tmp_path: Path):
    edits = lsp.WorkspaceEditClientCapabilities(document_changes=True)
    workspace = lsp.WorkspaceClientCapabilities(workspace_edit=edits)
    await lsp_client.initialize_session(
        lsp.InitializeParams(
            capabilities=lsp.ClientCapabilities(workspace=workspace),
            root_uri=tmp_path.as_uri(),
            initialization_options={"runScripts": "always"},
        )
    )
    yield lsp_client
    await lsp_client.shutdown_session()


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    path = tmp_path.resolve() / "train.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def script(entry: Path, told: dict[str, Any]) -> None:
    text = json.dumps(told).replace("ENTRY", str(entry))
    Path(f"{entry}.json").write_text(text)


def open_(client: LanguageClient, path: Path, text: str = MODEL) -> None:
    item = lsp.TextDocumentItem(path.as_uri(), "python", 1, text)
    client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))


def change(client: LanguageClient, path: Path, version: int, text: str) -> None:
    client.text_document_did_change(
        lsp.DidChangeTextDocumentParams(
            lsp.VersionedTextDocumentIdentifier(version=version, uri=path.as_uri()),
            [lsp.TextDocumentContentChangeWholeDocument(text)],
        )
    )


def save(client: LanguageClient, path: Path) -> None:
    document = lsp.TextDocumentIdentifier(path.as_uri())
    client.text_document_did_save(lsp.DidSaveTextDocumentParams(document))


def close(client: LanguageClient, path: Path) -> None:
    document = lsp.TextDocumentIdentifier(path.as_uri())
    client.text_document_did_close(lsp.DidCloseTextDocumentParams(document))


async def measure(client: LanguageClient, path: Path, until: str = "measured") -> Any:
    await client.protocol.send_request_async("stepscope/measure", {"uri": path.as_uri()})
    return await state(client, until)


async def state(client: LanguageClient, wanted: str) -> Any:
    """Wait for a state, and forget what was told before it."""
    return await asyncio.wait_for(_state(client, wanted), 60)


async def _state(client: LanguageClient, wanted: str) -> Any:
    while True:
        for index, (name, params) in enumerate(client.told):
            if name == "stepscope/state" and params.state == wanted:
                del client.told[: index + 1]
                return params
        await asyncio.sleep(0.01)


async def hints(client: LanguageClient, path: Path) -> list[tuple[int, int, Any]]:
    found = await client.text_document_inlay_hint_async(
        lsp.InlayHintParams(
            lsp.TextDocumentIdentifier(path.as_uri()), lsp.Range(lsp.Position(0, 0), lsp.Position(100, 0))
        )
    )
    return [(one.position.line, one.position.character, one.label) for one in found or ()]


async def test_a_line_tells_its_cost_and_the_hover_its_parts(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    assert await hints(client, entry) == []
    told = await measure(client, entry)
    assert told.message == "400 samples/s at 32"
    assert await hints(client, entry) == [(4, 41, "12.00 ms · 60% · 2.0 MB")]
    found = await client.text_document_hover_async(
        lsp.HoverParams(lsp.TextDocumentIdentifier(entry.as_uri()), lsp.Position(4, 3))
    )
    assert found.contents.value.startswith("**12.00 ms** per step, 60% of it")
    assert "| `first`  | 12.00 ms | 100% |" in found.contents.value


async def test_costs_follow_edits_above_and_go_stale_with_their_own_line(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    await measure(client, entry)
    change(client, entry, 2, "import math\n\n" + MODEL)
    assert await hints(client, entry) == [(6, 41, "12.00 ms · 60% · 2.0 MB")]
    change(client, entry, 3, MODEL.replace("self.second(", "self.third("))
    assert [one[2] for one in await hints(client, entry)] == ["(12.00 ms · 60% · 2.0 MB)"]
    change(client, entry, 4, MODEL)
    assert await hints(client, entry) == [(4, 41, "12.00 ms · 60% · 2.0 MB")]


async def test_torch_is_imported_beforehand_only_for_files_that_will_be_measured(client, entry):
    async def prepared() -> int:
        return await client.protocol.send_request_async("test/prepared", {})

    script(entry, COSTS)
    open_(client, entry)
    assert await prepared() == 0
    other = entry.with_name("providers.py")
    open_(client, other, "def stepscope_input_provider(batch_size=32): ...\n")
    assert await prepared() == 1
    await measure(client, entry)
    close(client, entry)
    open_(client, entry)
    assert await prepared() == 2


async def test_a_file_opened_through_a_link_is_known_by_the_name_it_was_opened_by(client, entry):
    link = entry.with_name("linked")
    link.symlink_to(entry.parent)
    script(entry, COSTS)
    by_link = link / entry.name
    open_(client, by_link)
    told = await measure(client, by_link)
    assert told.uri == by_link.as_uri()
    assert client.diagnostics[by_link.as_uri()]
    assert len(await hints(client, by_link)) == 1
    marks = [params for name, params in client.told if name == "stepscope/marks"]
    assert {one.uri for one in marks} <= {by_link.as_uri()}
    change(client, by_link, 2, "# moved\n" + MODEL)
    asked = {"uri": by_link.as_uri(), "value": 96}
    edit = await client.protocol.send_request_async("stepscope/batchEdit", asked)
    assert (edit.uri, edit.range.start.line) == (by_link.as_uri(), 7)


async def test_saving_measures_again(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    await measure(client, entry)
    script(entry, {"lines": {"5": ["first", 1.0, 0.5, 0]}})
    save(client, entry)
    await state(client, "measured")
    assert await hints(client, entry) == [(4, 41, "3.00 ms · 50%")]


async def test_what_was_never_measured_is_not_measured_by_a_save(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    save(client, entry)
    assert await hints(client, entry) == []
    assert not [name for name, _ in client.told if name == "stepscope/state"]


async def test_saving_can_be_switched_off(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    await measure(client, entry)
    client.workspace_did_change_configuration(
        lsp.DidChangeConfigurationParams({"stepscope": {"measureOnSave": False}})
    )
    save(client, entry)
    assert len(await hints(client, entry)) == 1
    assert not [one for name, one in client.told if name == "stepscope/state"]


async def test_a_problem_is_at_its_line_and_the_server_lives_on(client, entry):
    script(entry, {"problem": "RuntimeError: mat1 and mat2 shapes", "line": 5})
    open_(client, entry)
    await measure(client, entry, until="failed")
    (problem,) = client.diagnostics[entry.as_uri()]
    assert problem.range.start.line == 4
    assert problem.severity == lsp.DiagnosticSeverity.Error
    assert problem.message == "RuntimeError: mat1 and mat2 shapes"
    script(entry, COSTS)
    save(client, entry)
    await state(client, "measured")
    assert len(await hints(client, entry)) == 1
    (finding,) = client.diagnostics[entry.as_uri()]
    assert (finding.range.start.line, finding.message) == (7, "The step waits. Load ahead.")


async def test_a_problem_in_another_file_is_withdrawn_once_it_is_mended(client, entry):
    other = entry.with_name("layers.py")
    script(entry, {"problem": "RuntimeError", "line": 1, "path": str(other)})
    open_(client, entry)
    await measure(client, entry, until="failed")
    assert len(client.diagnostics[other.as_uri()]) == 1
    script(entry, COSTS)
    save(client, entry)
    await state(client, "measured")
    assert not client.diagnostics[other.as_uri()]


async def test_a_problem_begins_where_its_line_does(client, entry):
    script(entry, {"problem": "RuntimeError", "line": 5})
    open_(client, entry)
    await measure(client, entry, until="failed")
    (problem,) = client.diagnostics[entry.as_uri()]
    assert problem.range.start == lsp.Position(4, 8)


async def test_a_measurement_that_hangs_can_be_stopped_and_blocks_nothing(client, entry):
    script(entry, {"hang": True})
    open_(client, entry)
    await measure(client, entry, until="measuring")
    assert await hints(client, entry) == []
    uri = {"uri": entry.as_uri()}
    assert await client.protocol.send_request_async("stepscope/cancel", uri)
    await state(client, "cancelled")


async def test_an_action_sets_the_batch_size_and_nothing_else(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    await measure(client, entry)
    line = lsp.Position(6, 20)
    found = await client.text_document_code_action_async(
        lsp.CodeActionParams(
            lsp.TextDocumentIdentifier(entry.as_uri()), lsp.Range(line, line), lsp.CodeActionContext([])
        )
    )
    action, measuring = found
    assert action.title == "Set batch size to 48 (predicted 512 samples/s, 9.1 GB)"
    assert measuring.title == "Measure this file with stepscope"
    (change,) = action.edit.document_changes
    assert (change.text_document.uri, change.text_document.version) == (entry.as_uri(), 1)
    (edit,) = change.edits
    begin = MODEL.splitlines()[6].index("32")
    assert edit.range == lsp.Range(lsp.Position(6, begin), lsp.Position(6, begin + 2))
    assert edit.new_text == "48"


async def test_the_drag_asks_for_an_edit_of_the_text_as_it_is(client, entry):
    script(entry, COSTS)
    open_(client, entry)
    await measure(client, entry)
    change(client, entry, 2, "# ☃ moved\n" + MODEL.replace("=32", "=64"))
    asked = {"uri": entry.as_uri(), "value": 96}
    edit = await client.protocol.send_request_async("stepscope/batchEdit", asked)
    assert (edit.range.start.line, edit.newText) == (7, "96")
    assert (edit.version, edit.expected) == (2, "64")


async def test_where_it_is_ambiguous_nothing_is_edited(client, entry):
    text = MODEL + "other = torch.utils.data.DataLoader(data, batch_size=8)\n"
    open_(client, entry, text)
    asked = {"uri": entry.as_uri(), "value": 96}
    edit = await client.protocol.send_request_async("stepscope/batchEdit", asked)
    assert "7" in edit.problem
    assert not hasattr(edit, "newText")
