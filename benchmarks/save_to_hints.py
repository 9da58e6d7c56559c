"""From a save in an editor to the updated hints, over the language server.

    python benchmarks/save_to_hints.py [ENTRY.py] [--saves N]

A client starts `stepscope lsp` in a separate process, opens a copy of the file, has it measured,
then changes a comment in it and saves, several times. A save ends when the server answers with
hints of the new measurement. One more save comes while the previous one is still being measured.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from lsprotocol import types as lsp
from pygls.lsp.client import LanguageClient

_SMALL = Path(__file__).parent / "batch_entries" / "small.py"


class Editor:
    """A client with one file open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.uri = path.as_uri()
        self.text = path.read_text("utf-8")
        self.client = LanguageClient("save_to_hints", "1")
        self._states: asyncio.Queue[Any] = asyncio.Queue()
        self.client.feature("stepscope/state")(lambda state: self._states.put_nowait(state))
        for other in ("stepscope/marks", lsp.TEXT_DOCUMENT_PUBLISH_DIAGNOSTICS):
            self.client.feature(other)(lambda parameters: None)

    async def open(self) -> None:
        """Start the server and open the file."""
        await self.client.start_io(sys.executable, "-m", "stepscope", "lsp")
        await self.client.initialize_async(
            lsp.InitializeParams(
                capabilities=lsp.ClientCapabilities(), initialization_options={"runScripts": "always"}
            )
        )
        self.client.initialized(lsp.InitializedParams())
        item = lsp.TextDocumentItem(self.uri, "python", 0, self.text)
        self.client.text_document_did_open(lsp.DidOpenTextDocumentParams(item))

    async def close(self) -> None:
        """End the server."""
        await self.client.shutdown_async(None)
        self.client.exit(None)
        await self.client.stop()

    async def measure(self) -> None:
        """Measure for the first time."""
        await self.client.protocol.send_request_async("stepscope/measure", {"uri": self.uri})
        await self.until("measured")

    def save(self, version: int) -> None:
        """Change a comment and save."""
        text = f"{self.text}# {version}\n"
        temporary = self.path.with_suffix(".new")
        temporary.write_text(text, "utf-8")
        temporary.replace(self.path)  # the measurement before may be reading it
        self.client.text_document_did_change(
            lsp.DidChangeTextDocumentParams(
                lsp.VersionedTextDocumentIdentifier(version, self.uri),
                [lsp.TextDocumentContentChangeWholeDocument(text)],
            )
        )
        document = lsp.TextDocumentIdentifier(self.uri)
        self.client.text_document_did_save(lsp.DidSaveTextDocumentParams(document))

    async def until(self, wanted: str) -> None:
        """Wait for a state; one that failed ends the benchmark."""
        while (state := await self._states.get()).state != wanted:
            if state.state == "failed":
                raise SystemExit(state.message)

    async def hints(self) -> int:
        """How many hints the editor gets."""
        document = lsp.TextDocumentIdentifier(self.uri)
        lines = lsp.Range(lsp.Position(0, 0), lsp.Position(100_000, 0))
        found = await self.client.text_document_inlay_hint_async(lsp.InlayHintParams(document, lines))
        return len(found or ())


async def measure(path: Path, saves: int) -> None:
    """Print a line a save."""
    editor = Editor(path)
    await editor.open()
    begin = time.perf_counter()
    await editor.measure()
    print(f"first, with the start of the process that measures: {time.perf_counter() - begin:.2f} s")
    taken = []
    for number in range(1, saves + 1):
        begin = time.perf_counter()
        editor.save(number)
        await editor.until("measured")
        count = await editor.hints()
        taken.append(time.perf_counter() - begin)
        print(f"save {number}: {taken[-1]:.2f} s, {count} hints")
    print(f"median {median(taken):.2f} s, longest {max(taken):.2f} s")
    editor.save(saves + 1)
    await editor.until("measuring")
    begin = time.perf_counter()
    editor.save(saves + 2)
    await editor.until("cancelled")
    await editor.until("measured")
    print(f"a save while another is being measured: {time.perf_counter() - begin:.2f} s")
    await editor.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("entry", nargs="?", type=Path, default=_SMALL)
    parser.add_argument("--saves", type=int, default=5)
    chosen = parser.parse_args()
    print(f"{chosen.entry.name}, load average {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve() / chosen.entry.name
        copy.write_bytes(chosen.entry.read_bytes())
        asyncio.run(measure(copy, chosen.saves))


if __name__ == "__main__":
    main()
