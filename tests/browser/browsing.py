"""The page as a user meets it: where an operation is, a click on it, what is then on screen."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from patient import Patient

_PATIENCE_S = 120.0  # of a slow machine; what is awaited comes in a moment on others
_SCREENSHOTS = Path(__file__).parent / "screenshots"

# The bar of an operation on a level's canvas, by the level's own answer and the rows' names: where
# the page drew it, worked out without the page's code. `side` is "cpu" or "device".
_WHERE = """
async ([trace, path, id, side, every]) => {
  const query = new URLSearchParams({path, every: every ? "1" : ""});
  const {level} = await (await fetch(`/api/traces/${trace}/level?${query}`)).json();
  const at = level.operations.id.indexOf(id);
  const box = document
    .querySelector(`.level[data-level="${path}"] .level-bars`).getBoundingClientRect();
  const shown = new Set(level.resources.filter(one => one.shown).map(one => one.id));
  const name = new Map(level.resources.map(one => [one.id, one.name]));
  let span;
  if (side === "cpu") {
    const {start_ns, end_ns, resource} = level.operations;
    const row = path === "" ? Number(id.split(".")[1]) : resource[at];
    span = [start_ns[at], end_ns[at], name.get(row)];
  } else {
    const {operation, start_ns, end_ns, busy_ns, resource} = level.device;
    const mine = operation.map((one, i) => one === at && shown.has(resource[i]) ? i : -1)
      .filter(i => i >= 0).sort((a, b) => busy_ns[b] - busy_ns[a])[0];
    span = [start_ns[mine], end_ns[mine], name.get(resource[mine])];
  }
  const rows = [...document.querySelectorAll(`.level[data-level="${path}"] .row-name`)];
  // A level that is not the lowest is one strip without names of rows.
  const named = rows.find(one => one.title === span[2]);
  const row = named ? named.getBoundingClientRect() : box;
  const window = document.querySelector('.stack').dataset;
  const [from, to] = [Number(window.from), Number(window.to)];
  const [start, end] = [level.start_ns + span[0], level.start_ns + span[1]];
  const middle = (Math.max(start, from) + Math.min(end, to)) / 2;
  return {x: box.left + (middle - from) * box.width / (to - from), y: row.top + row.height / 2};
}
"""

# What is above or below the visible part of the timeline comes into its middle.
_SCROLL = """
y => {
  const stack = document.querySelector(".stack"), box = stack.getBoundingClientRect();
  if (y < box.top + 10 || y > box.bottom - 10) stack.scrollTop += y - (box.top + box.bottom) / 2;
}
"""

# The page writes its fragment once what has changed is painted.
_FRAGMENT = (
    "() => new Promise(done => requestAnimationFrame(() => setTimeout(() => done(location.hash.slice(1)))))"
)
_TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))"


class Workbench:
    """One page in a browser of its own, with the requests that it makes watched.

    Attributes:
        page: Playwright's page, which waits for the answers on their way before each call.
        problems: errors of the page's scripts, requests to elsewhere, what the CSP refused.
        clicks: how many clicks were made.
    """

    def __init__(self, context: Any) -> None:
        self.context = context
        self._page = context.new_page()
        self.page = Patient(self._page, self.settle)
        self.problems: list[str] = []
        self.clicks = 0
        self.url = self.base = ""
        self._page.on("pageerror", lambda error: self.problems.append(str(error)))
        self._page.on("console", self._heard)
        self._page.on("request", self._requested)

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(message.text)

    def _requested(self, request: Any) -> None:
        local = ("http://127.0.0.1:", "data:", "blob:", "file://")
        if not request.url.startswith(local):
            self.problems.append(f"a request to {request.url}")

    def open(self, url: str, fragment: str = "", shown: str = ".level canvas, .pair canvas") -> None:
        """Load the page, afresh, and wait until something is on it."""
        self.url, self.base = url, url.split("?")[0]
        self._page.goto("about:blank")
        self._page.goto(url + fragment)
        self._page.locator(shown).first.wait_for()

    def ask(self, request: str) -> Any:
        """An answer of the server, as the page would get it."""
        return self.page.evaluate(
            "async url => (await fetch(url)).json()", f"/api/traces/{self.trace}/{request}"
        )

    @property
    def trace(self) -> str:
        """The id of the trace on screen."""
        named = self.said.get("trace")
        return named or self.page.evaluate(
            "async () => (await (await fetch('/api/traces')).json()).traces[0].id"
        )

    @property
    def fragment(self) -> str:
        """The URL's fragment; Playwright's `page.url` learns of it only later."""
        return self.page.evaluate(_FRAGMENT)

    @property
    def said(self) -> dict[str, str]:
        """What the URL says of the view."""
        parts = (part.partition("=") for part in self.fragment.split("&") if part)
        return {key: unquote(value.replace("+", " ")) for key, _, value in parts}

    @property
    def path(self) -> str:
        """The path of the lowest level."""
        return self.said.get("path", "")

    @property
    def chosen(self) -> str:
        """The path of the chosen operation."""
        return self.said.get("chosen", self.path)

    def until(self, expression: str, page: Any = None) -> None:
        """Wait until an expression is true in the page, or in another one."""
        self.settle()
        self._poll(page or self._page, expression)

    def resize(self, width: int, height: int) -> None:
        """Change the window, and wait until the page has followed: it draws in the next frames."""
        self._page.set_viewport_size({"width": width, "height": height})
        self.until(f"innerWidth === {width} && innerHeight === {height}")
        self._page.evaluate(_TWO_FRAMES)
        self.settle()

    def in_theme(self, theme: str) -> None:
        """Change the system's theme, and wait until a page that is open has followed."""
        self._page.emulate_media(color_scheme=theme)
        self.until(f"['{theme}', undefined].includes(document.documentElement.dataset.theme)")

    def until_it_fits(self) -> None:
        """Wait until nothing is wider than the window, whose size may just have changed."""
        self.until("document.documentElement.scrollWidth <= innerWidth")

    def settle(self) -> None:
        """Wait until all that was asked for is on screen."""
        # A page that loads has no root for a moment.
        self._poll(self._page, "document.documentElement && !('busy' in document.documentElement.dataset)")

    def _poll(self, page: Any, expression: str) -> None:
        # The page's CSP lets nothing wait in there.
        end = time.monotonic() + _PATIENCE_S
        while not page.evaluate(expression):
            assert time.monotonic() < end, f"still not so after {_PATIENCE_S:.0f} s: {expression}"
            page.wait_for_timeout(25)

    def click(self, selector: str, **options: Any) -> None:
        """Click on something of the document."""
        self.clicks += 1
        self.page.locator(selector).first.click(**options)

    def bar(self, path: str, side: str = "cpu") -> dict[str, float]:
        """Where the bar of an operation is, px."""
        level, _, id = path.rpartition("/")
        every = self.said.get("every") == "1"
        return self.page.evaluate(_WHERE, [self.trace, level, id, side, every])

    def click_bar(self, path: str, side: str = "cpu") -> None:
        """Click on the bar of an operation, scrolled into sight first."""
        level = path.rpartition("/")[0]
        shown = self.page.locator(f'.level[data-level="{level}"] .level-rows')
        shown.scroll_into_view_if_needed()
        self.page.evaluate(_SCROLL, self.bar(path, side)["y"])
        where = self.bar(path, side)
        self.clicks += 1
        self.page.mouse.click(where["x"], where["y"])
        self.until(f"location.hash.includes({json.dumps(path)})")

    def operations(self, path: str) -> list[dict[str, Any]]:
        """The operations of a level, as rows."""
        every = "&every=1" if self.said.get("every") == "1" else ""
        level = self.ask(f"level?path={path}{every}")["level"]
        strings, columns = level["strings"], dict(level["operations"])
        for key in ("name", "kind", "bound_by"):
            columns[key] = [strings[code] for code in columns[key]]
        names = list(columns)
        rows = (dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True))
        return [row | {"path": f"{path}/{row['id']}" if path else row["id"]} for row in rows]

    def pane(self, id: str) -> None:
        """Show one of the panes."""
        self.click(f"#tab-{id}")
        self.page.locator(f'.pane[data-pane="{id}"]').wait_for()

    def details(self) -> dict[str, str]:
        """The facts of the chosen operation, by their names."""
        return self.page.evaluate(
            "() => Object.fromEntries([...document.querySelectorAll('.details .pairs > div')]"
            ".reverse().map(one => [one.children[0].innerText, one.children[1].innerText]))"
        )

    def picture(self, name: str) -> None:
        """Keep a screenshot for whoever reviews the change."""
        _SCREENSHOTS.mkdir(exist_ok=True)
        self.page.screenshot(path=_SCREENSHOTS / f"{name}.png")
