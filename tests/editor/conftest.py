"""VS Code in a real browser (code-server), with the packaged extension installed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import TimeoutError, expect, sync_playwright

_ROOT = Path(__file__).parents[2]
_PATIENCE_MS = 120_000  # of a slow machine; what is awaited comes in a second or two on others
_GLANCE_MS = 10_000
_LINE_HEIGHT = 20
MODEL = """\
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


def stepscope_input_provider(batch_size=32):  # naïve guess
    return torch.randn(batch_size, 64, 64), torch.randint(10, (batch_size,))


def stepscope_iteration_provider(model):
    import time

    optimizer = torch.optim.Adam(model.parameters())

    def iteration(x, y):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        time.sleep(3e-3 * len(x))  # so that a busy machine does not change how time grows

    return iteration
"""
_SETTINGS = {
    "workbench.startupEditor": "none",
    "workbench.colorTheme": "Default Light Modern",
    "workbench.secondarySideBar.defaultVisibility": "hidden",
    "workbench.activityBar.location": "hidden",
    "workbench.quickOpen.closeOnFocusLost": False,
    "telemetry.telemetryLevel": "off",
    "chat.disableAIFeatures": True,
    "files.autoSave": "off",
    "editor.minimap.enabled": False,
    "editor.occurrencesHighlight": "off",
    "editor.lineHeight": _LINE_HEIGHT,
    "remote.autoForwardPorts": False,
}
# The language server's errors go to a file: this editor keeps no logs.
_PYTHON = f"""#!/bin/sh
echo "starting $*" >> "$0.log"
exec {sys.executable} "$@" 2>> "$0.log"
"""
# Every text that stepscope has had in the status bar: what comes and goes is not missed.
_WATCH_STATUS = """() => {
  window.stepscopeSaid = [];
  const look = () => {
    const said = document.querySelector(".statusbar-item[id*='stepscope']")?.textContent ?? "";
    if (said !== window.stepscopeSaid.at(-1)) window.stepscopeSaid.push(said);
  };
  const all = { subtree: true, childList: true, characterData: true };
  new MutationObserver(look).observe(document.querySelector(".part.statusbar"), all);
  look();
}"""
_MEASURED_SINCE = """(count) =>
  window.stepscopeSaid.slice(count).some((said) => /samples.s\\sat\\s\\d/.test(said))
"""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One editor for all of these, so one worker runs them."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group("editor"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Iterator[None]:
    """With a failure goes what the editor showed and logged."""
    report = yield
    known = getattr(item, "funcargs", {})
    if report.failed and "editor" in known:
        with suppress(Exception):  # the page may be gone
            known["editor"].look(f"failed-{item.name}")
            report.sections.append(("the editor", known["editor"].describe()))
    return report


def need(name: str, what: str) -> str:
    found = os.environ.get(name, "")
    if not Path(found).is_file():
        reason = f"no {what}: run scripts/test, or set {name}"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return found


@pytest.fixture(scope="session")
def editor_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that the editor writes."""
    return tmp_path_factory.mktemp("editor")


@pytest.fixture(scope="session")
def address(editor_home: Path) -> Iterator[str]:
    """The editor's address; the extension is packaged and installed as a user would."""
    entry = need("STEPSCOPE_EDITOR", "code-server")
    node = need("STEPSCOPE_EDITOR_NODE", "Node to run it")
    home = editor_home
    vsix = home / "stepscope.vsix"
    subprocess.run([_ROOT / "scripts" / "vsix", vsix], check=True, capture_output=True, text=True)
    user = home / "user"
    python = home / "python"
    python.write_text(_PYTHON)
    python.chmod(0o755)
    here = {"stepscope.interpreter": str(python), "stepscope.runScripts": "always"}
    for scope, settings in {"User": _SETTINGS, "Machine": here}.items():
        (user / scope).mkdir(parents=True)
        (user / scope / "settings.json").write_text(json.dumps(settings))
    folders = [
        f"--user-data-dir={user}",
        f"--extensions-dir={home / 'extensions'}",
        f"--config={home / 'config.yaml'}",
    ]
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
    for _ in range(1800):
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
    return need("STEPSCOPE_CHROMIUM", "Chromium")


# A batch size in a settings file, after characters that count differently in each encoding.
_SETTINGS_FILE = """\
# größer 🎉 als nötig
lr: 0.1
loader:
  batch_size: 50  # für alle
  workers: 0
""".replace("\n", "\r\n")
_SCRIPT = """\
import torch
import yaml

with open("settings.yaml", encoding="utf-8") as file:
    settings = yaml.safe_load(file)
data = torch.utils.data.TensorDataset(torch.randn(4096, 64), torch.randint(10, (4096,)))
loader = torch.utils.data.DataLoader(data, batch_size=settings["loader"]["batch_size"])
model = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
for epoch in range(100):
    for x, y in loader:
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
"""


@pytest.fixture(scope="session")
def page(address: str, editor_home: Path, chromium: str) -> Iterator[Any]:
    """The editor with the model open."""
    expect.set_options(timeout=_PATIENCE_MS)
    folder = editor_home / "project"
    folder.mkdir()
    (folder / "train.py").write_text(MODEL, encoding="utf-8")
    (folder / "from_settings.py").write_text(_SCRIPT, encoding="utf-8")
    (folder / "settings.yaml").write_bytes(_SETTINGS_FILE.encode())
    opened = json.dumps([["openFile", f"vscode-remote://{address[7:]}{folder}/train.py"]])
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        page = browser.new_page(viewport={"width": 1500, "height": 900})
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(f"{address}/?folder={folder}&payload={urllib.parse.quote(opened)}")
        page.wait_for_selector(".monaco-editor .view-line")
        page.wait_for_selector(".statusbar-item[id*='stepscope']")  # the extension is active
        page.evaluate(_WATCH_STATUS)
        yield page
        browser.close()


@pytest.fixture(scope="session")
def editor(page: Any, editor_home: Path) -> Editor:
    """What a person does with it."""
    editor = Editor(page, editor_home / "project" / "train.py")
    editor.command("View: Toggle Primary Side Bar Visibility")
    return editor


class Editor:
    """What a person sees in the editor and does with it."""

    def __init__(self, page: Any, file: Path) -> None:
        self.page = page
        self.file = file
        self.panel = page.frame_locator("iframe.webview.ready").frame_locator("iframe")

    def command(self, title: str) -> None:
        """Run a command from the palette."""
        palette = self.page.locator(".quick-input-widget")

        def ask() -> None:
            # Which commands there are is decided when it opens: on a busy machine, perhaps before
            # the file has the focus.
            self.press("Escape")
            self.press("F1")
            palette.locator("input.input").fill(f">{title}")

        # The list is drawn anew while it is searched, and a click between two drawings is lost: the
        # command is taken from the keyboard, once it is the chosen one.
        self.until(ask, palette.locator(".monaco-list-row.focused", has_text=title)).wait_for()
        self.press("Enter")
        palette.wait_for(state="hidden")

    @contextmanager
    def measured(self) -> Iterator[None]:
        """Wait until what is done inside has led to a measurement."""
        before = self.page.evaluate("() => window.stepscopeSaid.length")
        yield
        self.page.wait_for_function(_MEASURED_SINCE, arg=before)

    def line(self, number: int) -> Any:
        """A line of the text, by its number from 1."""
        top = (number - 1) * _LINE_HEIGHT
        return self.page.locator(f".monaco-editor .view-line[style*='top:{top}px;']")

    def status(self) -> Any:
        """What stepscope says in the status bar."""
        return self.page.locator(".statusbar-item[id*='stepscope']")

    def focus(self, number: int = 1) -> None:
        """Put the cursor into a line."""

        def click() -> None:
            self.press("Control+1")  # a panel that takes the focus late would keep it
            self.line(number).click(position={"x": 5, "y": 5})

        status = self.page.locator("[id='status.editor.selection']", has_text=f"Ln {number},")
        expect(self.until(click, status)).to_be_visible()

    def open(self, name: str) -> None:
        """Open a text file by its name, and put the cursor into it."""
        self.show(name)
        self.focus()

    def show(self, name: str) -> None:
        """Open a file by its name in whatever shows such files."""
        search = self.page.locator(".quick-input-widget")

        def ask() -> None:
            self.press("Escape")
            self.press("Control+1")  # not among the tabs of the panel, which takes the focus late
            self.press("Control+p")
            with suppress(TimeoutError):
                search.locator("input.input").fill(name, timeout=_GLANCE_MS)

        self.until(ask, search.locator(".monaco-list-row.focused", has_text=name)).wait_for()
        self.press("Enter")
        self.page.locator(f".tab.active[data-resource-name='{name}']").wait_for()

    def drag(self, name: str, shares: Sequence[float]) -> int:
        """Drag a bar of the panel over shares of its width; the batch size that it ends at."""
        track = self.panel.get_by_role("slider", name=name)
        track.hover()  # once it has come to rest
        box = track.bounding_box()
        y = box["y"] + box["height"] / 2
        self.page.mouse.move(box["x"] + shares[0] * box["width"], y)
        number = self.panel.locator("output.batch-size")
        before = number.inner_text()
        self.page.mouse.down()
        for share in shares[1:]:
            self.page.mouse.move(box["x"] + share * box["width"], y, steps=3)
        self.page.mouse.up()
        expect(number).not_to_have_text(before)
        return int(number.inner_text())

    def press(self, keys: str) -> None:
        """Press keys."""
        self.page.keyboard.press(keys)

    def hover(self, number: int, x: int, text: str) -> Any:
        """Rest the pointer on a line until the hover with a text is there."""

        def rest() -> None:
            self.page.mouse.move(0, 0)
            self.line(number).hover(position={"x": x, "y": 8})

        return self.until(rest, self.page.locator(".monaco-hover:visible", has_text=text).first)

    def until(self, act: Callable[[], object], there: Any) -> Any:
        """Act until something is there: what opens goes when the editor is told something new."""
        for _ in range(_PATIENCE_MS // _GLANCE_MS):
            act()
            with suppress(TimeoutError):
                there.wait_for(timeout=_GLANCE_MS)
                break
        return there

    def wait_for_file(self, file: Path, wanted: bytes) -> None:
        """Wait until a file has been saved, and is what it shall be."""
        before = file.read_bytes()
        for _ in range(_PATIENCE_MS // 100):
            self.page.wait_for_timeout(100)
            if file.read_bytes() != before:
                break
        assert file.read_bytes() == wanted

    def look(self, name: str) -> None:
        """Keep a picture, to be looked at."""
        folder = Path(__file__).parent / "screenshots"
        folder.mkdir(exist_ok=True)
        self.page.screenshot(path=folder / f"{name}.png", animations="disabled")

    def describe(self) -> str:
        """What is on screen, in words."""
        seen = {
            "said in the status bar": self.page.evaluate("() => window.stepscopeSaid"),
            "notifications": self.page.locator(".notification-toast").all_inner_texts(),
            "palette": self.page.locator(".quick-input-widget:visible").all_inner_texts(),
            "language server": (self.file.parents[1] / "python.log").read_text(),
            "focus": self.page.evaluate("() => document.activeElement?.outerHTML.slice(0, 200)"),
        }
        return "\n".join(f"{name}: {what}" for name, what in seen.items())
