"""Neovim, Emacs (Eglot) and Helix, without a screen: measure, hints, hover, action, undo.

The keys that a person presses are in `clients/`; each runs the real server on a real model.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import MODEL, need

CLIENTS = Path(__file__).parent / "clients"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "editor.md"
CHANGED = re.compile(r"def stepscope_input_provider\(batch_size=(\d+)\):  # naïve guess")


def driven(folder: Path, *command: str) -> dict[str, Any]:
    """What an editor showed and did, when it was driven through its part."""
    file, out = folder / "train.py", folder / "found.json"
    file.write_text(MODEL, encoding="utf-8")
    home = {
        "HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
        "XDG_STATE_HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    done = subprocess.run(
        [*command, str(file), sys.executable, str(out)],
        env=os.environ | home,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert out.is_file(), done.stdout + done.stderr
    assert file.read_text(encoding="utf-8") == MODEL  # nothing was saved
    found: dict[str, Any] = json.loads(out.read_text(encoding="utf-8"))
    return found


def check(found: dict[str, Any]) -> None:
    """What every editor must show."""
    assert found["state"] == "measured", found
    assert re.fullmatch(r"[\d.,]+ samples/s at 32", found["message"])
    assert "forward" in found["hover"]
    assert "body.0" in found["hover"]
    before, after = CHANGED.fullmatch(found["before"]), CHANGED.fullmatch(found["after"])
    assert before is not None
    assert after is not None
    assert before[1] == "32" != after[1]
    assert found["undone"] == found["before"]


def test_neovim(tmp_path: Path) -> None:
    neovim = need("STEPSCOPE_NEOVIM", "Neovim")
    found = driven(tmp_path, neovim, "--clean", "--headless", "-l", str(CLIENTS / "neovim.lua"))
    check(found)
    assert re.match(r"[\d.,]+ ms · [\d.]+%", found["hints"]["12"])


@pytest.mark.skipif(
    not Path("/usr/share/emacs/site-lisp/elpa-src").is_dir() and os.environ.get("CI") != "true",
    reason="no Eglot: run scripts/test tests/editor",
)
def test_emacs(tmp_path: Path) -> None:
    emacs = need("STEPSCOPE_EMACS", "Emacs with Eglot")
    check(driven(tmp_path, emacs, "-Q", "--batch", "-l", str(CLIENTS / "eglot.el")))


def documented_setup(folder: Path) -> None:
    """Write the files that the guide says Helix needs, with this Python."""
    folder.mkdir()
    guide = GUIDE.read_text(encoding="utf-8")
    files = dict(re.findall(r"```toml\n# ~/\.config/helix/(\S+)\n(.*?)```", guide, re.DOTALL))
    assert set(files) == {"languages.toml", "config.toml"}
    for name, text in files.items():
        command = f"command = {json.dumps(sys.executable)}"
        (folder / name).write_text(text.replace('command = "python"', command), encoding="utf-8")


def test_helix(tmp_path: Path) -> None:
    neovim = need("STEPSCOPE_NEOVIM", "Neovim")
    need("STEPSCOPE_HELIX", "Helix")
    documented_setup(tmp_path / "helix")
    found = driven(tmp_path, neovim, "--clean", "--headless", "-l", str(CLIENTS / "helix.lua"))
    check(found)
    assert re.match(r"[\d.,]+ ms · [\d.]+%", found["hints"]["12"])
