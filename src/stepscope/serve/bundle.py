"""The built page: where it is, and all of it as one text."""

from __future__ import annotations

import re
from pathlib import Path

from stepscope.errors import ServeError

FOLDER = Path(__file__).parents[1] / "_web"
BUILD = "npm --prefix web ci && npm --prefix web run build"
_SCRIPT = re.compile(r'<script\b(?P<rest>[^>]*?)\bsrc="(?P<file>[^"]+)"[^>]*>\s*</script>')
_STYLE = re.compile(r'<link\b[^>]*\brel="stylesheet"[^>]*>')
_HREF = re.compile(r'\bhref="([^"]+)"')


def page(name: str = "index.html") -> Path:
    """The HTML file of a page.

    Args:
        name: which; `batch.html` is the one about batch sizes.

    Raises:
        ServeError: if the page is not built.
    """
    file = FOLDER / name
    if not file.is_file():
        raise ServeError(
            f"expected the built page in {FOLDER}, found none; build it with: {BUILD}", 503
        )
    return file


def page_in_one(before_scripts: str, name: str = "index.html") -> str:
    """The page as one text, its scripts and styles inlined.

    Args:
        before_scripts: HTML to stand before them at the end of the head.
        name: which page.

    Raises:
        ServeError: if the page is not built.
    """
    html = page(name).read_text("utf-8")
    scripts = [_script(found["file"]) for found in _SCRIPT.finditer(html)]
    styles = [_style(_HREF.search(found[0])) for found in _STYLE.finditer(html)]
    bare = _STYLE.sub("", _SCRIPT.sub("", html))
    head, closing, body = bare.partition("</head>")
    # A module runs once the document is read, so the data may as well be in the head.
    return "".join([head, *styles, before_scripts, *scripts, closing, body])


def _script(name: str) -> str:
    # "</script" would end the element, "<!--" could begin a comment; both may stand in strings.
    text = re.sub(r"<(?=/script|!--)", r"\\x3c", _read(name), flags=re.IGNORECASE)
    return f'<script type="module">{text}</script>\n'


def _style(name: re.Match[str] | None) -> str:
    if name is None:
        return ""
    text = re.sub(r"</(?=style)", r"<\\/", _read(name[1]), flags=re.IGNORECASE)
    return f"<style>{text}</style>\n"


def _read(name: str) -> str:
    return (FOLDER / name.removeprefix("./").removeprefix("/")).read_text("utf-8")
