"""Source and settings files as text: decoded, and searched for batch sizes.

Numbers in YAML, JSON and TOML are found by their lines and changed in place, so that comments,
quotes and order stay; a parser checks the result where one is installed.
"""

import codecs
import io
import re
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from stepscope.base.input_files import content_of
from stepscope.errors import BatchError
from stepscope.models.batch_size.resolve_number import is_batch_size, is_evaluation
from stepscope.models.batch_size.site import Site

ReadText = Callable[[str], str]
"""Returns the text of a file by its path; raises `BatchError`."""
SUFFIXES = (".yaml", ".yml", ".json", ".toml")
_ENTRY = re.compile(
    r"""(?<!\w)(?P<quote>["']?)(?P<key>[A-Za-z_][\w.-]{0,200})(?P=quote)\s{0,100}[:=]\s{0,100}"""
    r"""(?P<value>(?P<mark>["']?)\d[\d_]{0,17}(?P=mark))(?=\s*(?:[,}\]#]|$))"""
)
_HEAD = re.compile(
    r"""^(?P<indent>\s*)(?:-\s+)*["']?(?P<key>[A-Za-z_][\w.-]*)["']?\s*:\s*(?:[{\[&].*)?(?:#.*)?$"""
)
_TABLE = re.compile(r"^\s*\[{1,2}(?P<key>[^\[\]]+)\]")
_BLOCK = re.compile(r"(?:^|[\s:-])[|>][+-]?\d?[+-]?$")
_TRIPLE = re.compile(r"""\"{3}|'{3}""")
_MOST_BYTES = 1 << 26  # of a source file: the language server takes no longer message
_MOST_LINES = 30_000  # that are searched, in 0.3 s
_LONGEST_LINE = 20_000  # characters: nobody writes a setting by hand into a longer one
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\n|\r|$)")


@dataclass(frozen=True)
class EditableText:
    """A file's text, its ends of line as they are, and what is needed to write it again."""

    path: str
    text: str  # its characters, without a byte order mark
    encoding: str = "utf-8"
    mark: str = ""  # its byte order mark as text, which marks it as UTF-8


def read_source(path: str | Path) -> EditableText:
    """A Python, YAML, JSON or TOML file; raises BatchError if there is no such file, or it is no
    text in the encoding that it declares."""
    try:
        if Path(path).stat().st_size > _MOST_BYTES:
            raise BatchError(f"cannot read {path}: it is no source file of at most {_MOST_BYTES >> 20} MB")
        content = content_of(path)
        mark = "\ufeff" if content.startswith(codecs.BOM_UTF8) else ""
        encoding = declared_encoding(str(path), content)
        text = content.removeprefix(codecs.BOM_UTF8).decode(encoding)
        return EditableText(str(path), text, encoding, mark)
    except OSError as error:
        raise BatchError(f"cannot read {path}: {error.strerror or str(error)}") from error
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise BatchError(f"cannot decode {path}: {error}; save the file as UTF-8", str(path)) from error


def read_text(path: str) -> str:
    """The text of a file on disk, without byte order mark; raises `BatchError`."""
    return read_source(path).text


def declared_encoding(path: str, content: bytes) -> str:
    """The encoding that a file declares; raises `SyntaxError` if there is none of that name."""
    if not path.endswith((".py", ".pyi")):
        return "utf-8"
    declared, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
    return "utf-8" if declared == "utf-8-sig" else declared


def settings_files(
    script: str, arguments: Sequence[str], strings: Sequence[str], folder: str | None = None
) -> list[Path]:
    """The settings files that a script is given or names, those given first; names are looked up in
    the working folder, then in the script's."""
    names = [part for word in arguments for part in (word, word.partition("=")[2])]
    folders = [Path(folder or Path.cwd()), Path(script).parent]
    config = {f"{name}/" for name in strings if name and "/" not in name and "." not in name}
    stems = [s for s in strings if re.fullmatch(r"[\w-]+", s)] if config else []
    wanted = [*names, *strings, *(f"{c}{s}.yaml" for c in config for s in stems)]
    found: dict[Path, None] = {}
    for name in wanted:
        if name.endswith(SUFFIXES):
            candidates = (folder / name for folder in folders)
            file = next((candidate for candidate in candidates if _is_file(candidate)), None)
            if file is not None:
                found.setdefault(file)
    return list(found)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def find_settings(text: str, path: str) -> list[Site]:
    """Entries named like a batch size, with their path of keys as name."""
    return [site for site in entries(text, path) if is_batch_size(site.name.rpartition(".")[2])]


def entries(text: str, path: str) -> Iterator[Site]:
    """The whole numbers of a settings file, with their path of keys as name."""
    around: list[tuple[int, str]] = []
    start = 0
    for number, (line, quoted) in enumerate(islice(_quoted_lines(text, path), _MOST_LINES), 1):
        if quoted or len(line) > _LONGEST_LINE:
            start += len(line)
            continue
        code = _without_comment(line)
        indent = len(line) - len(line.lstrip())
        if code.strip():
            around = [outer for outer in around if outer[0] < indent]
        if table := _TABLE.match(code) if path.endswith(".toml") else None:
            around = [(-1, table["key"].strip())]
        for match in _ENTRY.finditer(code):
            yield _site(path, ".".join([key for _, key in around] + [match["key"]]), match, start, number)
        if head := _HEAD.match(code.rstrip()):
            around.append((indent, head["key"]))
        start += len(line)


def _quoted_lines(text: str, path: str) -> Iterator[tuple[str, bool]]:
    """Lines with their ends, and whether each continues a string of several lines.

    A string in three quotes of TOML goes on to the next three, a block scalar of YAML while lines are
    indented deeper than its key.
    """
    inside, block = "", None
    for line in _LINE.findall(text):
        indent = len(line) - len(line.lstrip())
        if block is not None and line.strip() and indent <= block:
            block = None
        yield line, bool(inside) or block is not None
        for mark in _TRIPLE.findall(line) if path.endswith(".toml") else ():
            inside = "" if inside == mark else inside or mark
        in_yaml = path.endswith((".yaml", ".yml")) and block is None
        if in_yaml and len(line) <= _LONGEST_LINE and _BLOCK.search(_without_comment(line).rstrip()):
            block = indent


def _without_comment(line: str) -> str:
    """The same length, with a comment blanked: `batch_size: 4` in one is no setting."""
    match = re.search(r"(^|\s)#.*|^\s*//.*", line.rstrip("\r\n"))
    return line[: match.start()] + " " * (len(line) - match.start()) if match else line


def _site(path: str, name: str, match: re.Match[str], start: int, line: int) -> Site:
    first, last = match.span("value")
    return Site(
        kind="setting",
        path=path,
        name=name,
        value=int(match["value"].strip("\"'")),
        text=match["value"],
        start=start + first,
        end=start + last,
        line=line,
        column=first,
        role="evaluate" if is_evaluation(name.replace(".", "_")) else "train",
    )
