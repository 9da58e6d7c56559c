"""Which number is meant: candidates, the user's choice, and what is not saved."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from reference_client import Buffer, Client

from stepscope.errors import BatchError
from stepscope.faces.editor.measuring import (
    Measured,
    MeasureError,
    MeasureRequest,
    _problem,
    _settings_before,
)
from stepscope.models.batch_size.entry import open_entry

TWO = """\
from torch.utils.data import DataLoader
first = DataLoader(a, batch_size=32)
second = DataLoader(b, batch_size=8)
"""
READS = "import yaml\nsettings = yaml.safe_load(open('conf.yaml'))\n"
YAML = "# größer 🎉\nbatch_size: 50\n"


class Opens:
    """Opens entry files as a measurement does, and runs nothing."""

    def __init__(self) -> None:
        self.requests: list[MeasureRequest] = []

    async def __call__(self, request: MeasureRequest, report: Any) -> Measured:
        self.requests.append(request)
        folder = Path(request.entry).parent
        try:
            entry = open_entry(request.entry, unsaved=request.unsaved, choice=request.choice, folder=folder)
        except BatchError as error:
            raise MeasureError(_problem(request, error)) from error
        now = {"batch": entry.batch, "throughput": 1.0}
        suggestions = [{"batch": 48, "throughput": 2.0}]
        answer = {"now": now, "suggestions": suggestions}
        settings = _settings_before(request)
        return Measured(request.entry, {}, answer, settings=settings)

    def describe_run(self, *_: Any) -> str:
        return ""

    def prepare(self) -> None: ...

    async def close(self) -> None: ...


def play(
    scene: Callable[[Client, Opens], Awaitable[None]], capabilities: dict[str, Any] | None = None
) -> None:
    async def whole() -> None:
        opens = Opens()
        client = Client(opens)
        await client.start(capabilities)
        await scene(client, opens)
        await client.server.close()

    asyncio.run(whole())


def written(path: Path, text: str) -> Buffer:
    path.write_text(text, encoding="utf-8")
    return Buffer(path.resolve(), text)


async def measured(client: Client, buffer: Buffer, until: str = "measured") -> dict[str, Any]:
    command = {"command": "stepscope.measureFile", "arguments": [buffer.uri]}
    await client.ask("workspace/executeCommand", command)
    return await client.state(until)


def test_each_candidate_has_a_diagnostic_and_an_action_that_chooses_it(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", TWO)
        client.open(entry)
        await client.ask(
            "workspace/executeCommand", {"command": "stepscope.measureFile", "arguments": [entry.uri]}
        )
        while not any(one["method"] == "textDocument/publishDiagnostics" for one in client.told):
            await asyncio.sleep(0.01)
        diagnostics = client.diagnostics(entry)
        assert [one["range"]["start"]["line"] for one in diagnostics] == [1, 2]
        (choice, _) = await client.actions(entry, 2, diagnostics=diagnostics)
        assert choice["title"] == "Use batch_size = 8 as the batch size"
        assert choice["kind"] == "quickfix"
        assert choice["diagnostics"] == diagnostics
        await client.state("failed")
        await client.run(choice)
        assert (await client.state("measured"))["message"] == "1 samples/s at 8"
        # Its place counts, not its line; the edit is of the number that was chosen.
        client.change(entry, [entry.replace(0, 0, "# a line\r")])
        edit = await client.batch_edit(entry, 99)
        assert (edit["range"]["start"]["line"], edit["expected"]) == (3, "8")
        assert [one["title"] for one in await client.actions(entry, 2)][:-1] == []
        assert "Set batch size to 48" in (await client.actions(entry, 3))[0]["title"]

    play(scene)


def test_a_choice_no_longer_counts_when_the_candidates_are_others(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", TWO)
        client.open(entry)
        await measured(client, entry, until="failed")
        (choice, _) = await client.actions(entry, 1)
        await client.run(choice)
        await client.state("measured")
        client.change(entry, [entry.replace(0, 0, "third = DataLoader(c, batch_size=4)\n")])
        assert "several batch sizes" in (await client.batch_edit(entry, 99))["problem"]

    play(scene)


def test_unsaved_texts_are_measured_as_they_are(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", READS)
        settings = written(tmp_path / "conf.yaml", YAML)
        other = written(tmp_path / "other.py", "saved = 1\n")
        for buffer in (entry, settings, other):
            client.open(buffer)
        client.change(settings, [settings.replace(0, 0, "# not saved\n")])
        place = settings.text.index("50")
        units = len(settings.text[:place].encode("utf-16-le")) // 2
        client.change(settings, [settings.replace(units, units + 2, "64")])
        assert (await measured(client, entry))["message"] == "1 samples/s at 64"
        assert opens.requests[-1].unsaved == {str(settings.path): settings.text}

    play(scene)


def test_an_unsaved_text_that_no_file_can_hold_is_refused(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", "batch_size = 32\n")
        client.open(entry)
        client.change(entry, [{"text": "batch_size = 32  # \ud83c\n"}])
        entry.version += 1
        assert "save it first" in (await measured(client, entry, "failed"))["message"]

    play(scene)


def test_a_number_in_a_settings_file_has_its_actions_and_a_save_measures(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", READS)
        settings = written(tmp_path / "conf.yaml", YAML)
        client.open(entry)
        client.open(settings)
        await measured(client, entry)
        (action,) = await client.actions(settings, 1)
        (edit,) = action["edit"]["documentChanges"][0]["edits"]
        assert (edit["range"]["start"], edit["newText"]) == ({"line": 1, "character": 12}, "48")
        client.notify("textDocument/didSave", {"textDocument": {"uri": settings.uri}})
        await client.state("measured")

    play(scene)


def test_the_number_in_a_settings_file_is_known_before_that_is_opened(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", READS)
        settings = written(tmp_path / "conf.yaml", YAML)
        client.open(entry)
        await measured(client, entry)
        assert await client.server.current_batch(str(entry.path)) == 50
        edit = await client.batch_edit(entry, 48)
        assert edit["open"] == settings.uri

    play(scene)


def test_mending_a_settings_file_measures_a_script_that_it_kept_from_being_measured(tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", READS)
        settings = written(tmp_path / "conf.yaml", "lr: 0.1\n")
        client.open(entry)
        client.open(settings)
        assert "no batch size" in (await measured(client, entry, "failed"))["message"]
        settings.path.write_text("batch_size: 16\n")
        client.change(settings, [{"text": "batch_size: 16\n"}])
        client.notify("textDocument/didSave", {"textDocument": {"uri": settings.uri}})
        assert (await client.state("measured"))["message"] == "1 samples/s at 16"

    play(scene)


def test_a_text_is_parsed_once_for_all_the_actions_in_it(tmp_path: Path, monkeypatch: Any) -> None:
    searched = []
    from stepscope.faces.editor import language_server

    search = language_server.find_current_sites
    monkeypatch.setattr(
        language_server, "find_current_sites", lambda *given: searched.append(1) or search(*given)
    )

    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", "batch_size = 32\n")
        client.open(entry)
        await measured(client, entry)
        for _ in range(5):
            assert len(await client.actions(entry, 0)) == 2
        assert len(searched) == 1
        client.change(entry, [entry.replace(0, 0, "# moved\n")])
        assert len(await client.actions(entry, 1)) == 2
        assert len(searched) == 2

    play(scene)


# What each editor says of itself.
CAPABILITIES = {
    "neovim": {"workspace": {"workspaceEdit": {"resourceOperations": ["rename"]}}},
    "eglot": {"workspace": {"workspaceEdit": {"documentChanges": True}}},
    "helix": {
        "general": {"positionEncodings": ["utf-8", "utf-32", "utf-16"]},
        "workspace": {"workspaceEdit": {"documentChanges": True, "failureHandling": "abort"}},
    },
    "an editor without versions": {"workspace": {"workspaceEdit": {}}},
}


@pytest.mark.parametrize("name", CAPABILITIES)
def test_actions_are_offered_in_the_units_of_each_editor(name: str, tmp_path: Path) -> None:
    async def scene(client: Client, opens: Opens) -> None:
        entry = written(tmp_path / "train.py", READS)
        line = '{"größer 🎉": 1, batch_size: 50}'
        settings = written(tmp_path / "conf.yaml", line)
        client.open(entry)
        client.open(settings)
        await measured(client, entry)
        found = await client.actions(settings, 0)
        if "without" in name:
            assert found == []
            return
        edits = found[0]["edit"]["documentChanges"][0]
        before = line[: line.index("50")]
        units = len(before.encode() if name == "helix" else before.encode("utf-16-le")[::2])
        assert edits["edits"][0]["range"]["start"] == {"line": 0, "character": units}
        assert edits["textDocument"]["version"] == 1

    play(scene, CAPABILITIES[name])
