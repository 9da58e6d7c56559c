"""VS Code in a real browser (code-server), with the packaged extension installed."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_PATIENCE_MS = 30_000
_LINE_HEIGHT = 20
_MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        x = self.body(x)
        return self.head(x.mean(1))


def stepscope_model_provider():
    return Net()


def stepscope_input_provider(batch_size=32):  # für alle
    return torch.randn(batch_size, 64, 64), torch.randint(10, (batch_size,))


def stepscope_iteration_provider(model):
    optimizer = torch.optim.Adam(model.parameters())

    def iteration(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()

    return iteration
"""
_SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Light Modern",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.sideBar.location": "right",
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
    "files.autoSave": "off",
    "editor.minimap.enabled": False,
    "editor.lineHeight": _LINE_HEIGHT,
    "remote.autoForwardPorts": False,
    "stepscope.interpreter": sys.executable,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One editor for all of these, so one worker runs them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("editor"))


def _need(name: str, what: str) -> str:
    found = os.environ.get(name, "")
    if not Path(found).is_file():
        reason = f"no {what}: run scripts/test, or set {name}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the editor writes."""
    return tmp_path_factory.mktemp("editor")


@pytest.fixture(scope="session")
def address(home: Path) -> Iterator[str]:
    """The editor's address; the extension is packaged and installed as a user would."""
    entry = _need("STEPSCOPE_EDITOR", "code-server")
    node = _need("STEPSCOPE_EDITOR_NODE", "Node to run it")
    vsix = home / "stepscope.vsix"
    subprocess.run([_ROOT / "scripts" / "vsix", vsix], check=True, capture_output=True, text=True)
    user = home / "user" / "User"
    user.mkdir(parents=True)
    (user / "settings.json").write_text(json.dumps(_SETTINGS))
    folders = [f"--user-data-dir={user.parent}", f"--extensions-dir={home / 'extensions'}",
               f"--config={home / 'config.yaml'}"]  # fmt: skip
    install = [node, entry, *folders, "--install-extension", str(vsix)]
    subprocess.run(install, check=True, capture_output=True, text=True)
    port = _free_port()
    quietly = ["--disable-telemetry", "--disable-update-check", "--disable-workspace-trust"]
    command = [node, entry, *folders, "--auth=none", f"--bind-addr=127.0.0.1:{port}", *quietly]
    log = (home / "log").open("w")
    server = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        _wait_for(f"http://127.0.0.1:{port}/healthz")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_for(url: str) -> None:
    for _ in range(600):
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    raise TimeoutError(f"nothing answers at {url}")


@pytest.fixture(scope="session")
def chromium() -> str:
    """Chromium's program."""
    os.environ.setdefault("STEPSCOPE_CHROMIUM", "/usr/bin/chromium")
    return _need("STEPSCOPE_CHROMIUM", "Chromium")


@pytest.fixture(scope="session")
def page(address: str, home: Path, chromium: str) -> Iterator[Any]:
    """The editor with the model open."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=_PATIENCE_MS)
    folder = home / "project"
    folder.mkdir()
    (folder / "train.py").write_text(_MODEL, encoding="utf-8")
    opened = json.dumps([["openFile", f"vscode-remote://{address[7:]}{folder}/train.py"]])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(f"{address}/?folder={folder}&payload={urllib.parse.quote(opened)}")
        page.wait_for_selector(".monaco-editor .view-line")
        page.wait_for_selector(".statusbar-item[id*='stepscope']")  # the extension is active
        yield page
        browser.close()


@pytest.fixture(scope="session")
def editor(page: Any, home: Path) -> Editor:
    """What a person does with it."""
    return Editor(page, home / "project" / "train.py")


class Editor:
    """What a person sees in the editor and does with it."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.file = file
        self.panel = page.frame_locator("iframe.webview.ready").frame_locator("iframe")

    def command(self, title: str) -> None:
        """Run a command from the palette."""
        self.page.keyboard.press("F1")
        box = self.page.locator(".quick-input-widget input")
        box.fill(f">{title}")
        self.page.locator(".quick-input-list .monaco-list-row", has_text=title).first.click()

    def line(self, number: int) -> Any:
        """A line of the text, by its number from 1."""
        top = (number - 1) * _LINE_HEIGHT
        return self.page.locator(f".monaco-editor .view-line[style*='top:{top}px;']")

    def text(self, number: int) -> str:
        """What a line shows, hints included."""
        return str(self.line(number).inner_text()).replace("\xa0", " ")

    def status(self) -> Any:
        """What stepscope says in the status bar."""
        return self.page.locator(".statusbar-item[id*='stepscope']")

    def batch_size(self) -> int:
        """The number in the text."""
        found = re.search(r"batch_size=(\d+)\)", self.text(20))
        assert found, self.text(20)
        return int(found[1])

    def focus(self, number: int = 1) -> None:
        """Put the cursor into a line."""
        self.line(number).click(position={"x": 5, "y": 5})

    def press(self, keys: str) -> None:
        """Press keys."""
        self.page.keyboard.press(keys)

    def look(self, name: str) -> None:
        """Keep a picture, to be looked at."""
        folder = Path(__file__).parent / "screenshots"
        folder.mkdir(exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png")
