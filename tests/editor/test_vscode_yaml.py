"""A batch size in a YAML file, dragged in a real editor: the right token changes, and nothing else.

The same session as test_vscode.py, after it.
"""

from __future__ import annotations

import re
from typing import Any

from playwright.sync_api import expect

UNSAVED = "# typed, not saved"


def test_a_drag_changes_the_number_in_the_settings_file_as_it_is_in_the_editor(editor: Any) -> None:
    file = editor.file.with_name("settings.yaml")
    before = file.read_bytes()
    editor.open("from_settings.py")
    with editor.measured():
        editor.command("stepscope: Measure This File")
    editor.command("stepscope: Open Batch Size Panel")
    expect(editor.panel.locator("output.batch-size")).to_have_text("50")
    editor.open("settings.yaml")
    editor.focus(2)
    editor.press("Home")
    editor.page.keyboard.type(UNSAVED + "\n")  # what is on disk is now a line behind
    chosen = editor.drag("Peak memory", [0.5, 0.3, 0.6, 0.4, 0.7])
    expect(editor.line(5)).to_contain_text(re.compile(rf"^\s*batch_size:\s{chosen}\s+#"))
    editor.look("yaml")
    assert file.read_bytes() == before
    editor.command("File: Toggle Auto Save")
    typed = before.replace(b"lr:", f"{UNSAVED}\r\nlr:".encode())
    wanted = typed.replace(b"size: 50", b"size: %d" % chosen)
    editor.wait_for_file(file, wanted)
    editor.command("File: Toggle Auto Save")
    editor.open("from_settings.py")  # the script that reads it is measured again
    expect(editor.status()).to_contain_text(f"samples/s at {chosen}")
