"""An entry file as it is to run at a batch size: by option, by provider, or edited in memory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepscope.capture.batch.request import Effort, Request
from stepscope.predict.edit import edit_site
from stepscope.predict.find import find_site
from stepscope.predict.site import Site
from stepscope.predict.source import Source, read_source

# What torch reads from the environment when it is imported; a script may set it before.
_CARES_FOR_IMPORT = re.compile(r"os\.environ|putenv|set_start_method\(|load_dotenv")


@dataclass(frozen=True)
class Entry:
    """A script or a file with providers, its command line, and where its batch size is.

    Attributes:
        path: the file, absolute.
        arguments: its command line.
        site: what sets the batch size.
        sources: the files that an edit would touch or an editor holds unsaved, by path.
        folder: where to run.
    """

    path: str
    arguments: tuple[str, ...]
    site: Site
    sources: Mapping[str, Source]
    unsaved: bool
    folder: str

    @property
    def kind(self) -> str:
        """`providers` or `script`."""
        return "providers" if self.site.kind == "provider" else "script"

    @property
    def batch(self) -> int:
        """The batch size as things are: of the command line, or as written."""
        given = given_option(self.arguments, self.site.option) if self.site.option else None
        return int(given) if given and given.isdecimal() else self.site.value

    @property
    def may_fork(self) -> bool:
        """Whether torch may be imported before the script asks for it."""
        return self.kind == "providers" or not _CARES_FOR_IMPORT.search(
            self.sources[self.path].text
        )

    def request(
        self,
        batch: int,
        *,
        effort: Effort | None = None,
        capture: str | None = None,
        estimate: bool = False,
        timeout_s: float = 600.0,
    ) -> Request:
        """How to measure a batch size; nothing is written to any of the user's files."""
        arguments, files = self._with(batch)
        return Request(
            entry=self.path,
            result="",
            log="",
            batch=batch,
            providers=self.site.provider and self.site.provider.partition("_")[0],
            arguments=arguments,
            folder=self.folder,
            edits={path: self._marked(path, text) for path, text in files.items()},
            encodings={path: self.sources[path].encoding for path in files},
            capture=capture,
            estimate=estimate,
            effort=effort or Effort(),
            timeout_s=timeout_s,
        )

    def _with(self, batch: int) -> tuple[tuple[str, ...], dict[str, str]]:
        """The command line and the files' texts, where they differ, for a batch size."""
        files = {self.path: self.sources[self.path].text} if self.unsaved else {}
        if self.kind != "script" or batch == self.batch:
            return self.arguments, files
        if self.site.option:
            return with_option(self.arguments, self.site.option, batch), files
        text = self.sources[self.site.path].text
        files[self.site.path] = edit_site(text, self.site, batch).apply(text)
        return self.arguments, files

    def _marked(self, path: str, text: str) -> str:
        """With its byte order mark; one that is needed to tell UTF-8 must stay."""
        return ("\ufeff" if self.sources[path].mark else "") + text


def open_entry(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    text: str | None = None,
    choice: str | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> Entry:
    """Read an entry file and find its batch size.

    Args:
        path: the file.
        arguments: its command line.
        text: what an editor holds in its place.
        choice: which batch size, where there are several: `LINE`, `FILE:LINE` or a name.
        folder: where to run; by default here.

    Returns:
        The entry.

    Raises:
        AmbiguousBatchSize: there are several batch sizes.
        BatchError: there is no such file, it does not parse, or it has no batch size.
    """
    full = str(Path(path).absolute())
    source = read_source(full) if text is None else _unsaved(full, text)
    site = find_site(source.text, full, arguments, choice)
    sources = {full: source}
    if site.path != full:
        settings = str(Path(site.path).absolute())
        sources[settings] = read_source(settings)
        site = site.at(path=settings)
    here = str(Path(folder or Path.cwd()).absolute())
    return Entry(full, tuple(arguments), site, sources, text is not None, here)


def _unsaved(path: str, text: str) -> Source:
    encoding = read_source(path).encoding if Path(path).is_file() else "utf-8"
    return Source(path, text, encoding)


def given_option(arguments: Sequence[str], option: str) -> str | None:
    """The value that a command line gives an option, the last one counts."""
    value = None
    for place, word in enumerate(arguments):
        if word == option and place + 1 < len(arguments):
            value = arguments[place + 1]
        elif word.startswith(f"{option}="):
            value = word.partition("=")[2]
    return value


def with_option(arguments: Sequence[str], option: str, value: int) -> tuple[str, ...]:
    """A command line that gives an option this value, in its old place if it had one.

    Example:
        >>> with_option(["--lr", "1", "--batch", "8"], "--batch", 16)
        ('--lr', '1', '--batch', '16')
    """
    words = list(arguments)
    found = False
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words):
            words[place + 1] = str(value)
            found = True
        elif word.startswith(f"{option}="):
            words[place] = f"{option}={value}"
            found = True
    if found:
        return tuple(words)
    end = words.index("--") if "--" in words else len(words)
    return (*words[:end], option, str(value), *words[end:])
