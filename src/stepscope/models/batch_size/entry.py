"""An entry file as it is to run at a batch size: by option, by provider, or edited in memory."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from stepscope.base.scratch import Scratch
from stepscope.errors import BatchError
from stepscope.models.batch_size.find_site import find_site
from stepscope.models.batch_size.resolve_number import is_evaluation
from stepscope.models.batch_size.site import Site, SiteChoice, edit_site
from stepscope.models.batch_size.source_facts import SourceFacts, option_name, read_facts
from stepscope.models.batch_size.source_files import EditableText, declared_encoding, read_source
from stepscope.record.batch_size.request import RunRequest

_JAX = re.compile(r"^\s*(?:import|from)\s+(?:jax|flax|equinox|haiku|optax)\b", re.MULTILINE)
_TORCH = re.compile(r"^\s*(?:import|from)\s+(?:torch|lightning|transformers)\b", re.MULTILINE)
# What a framework reads from the environment when it is imported; a script may set it before.
_CARES_FOR_IMPORT = re.compile(r"os\.environ|putenv|set_start_method\(|load_dotenv")


@dataclass(frozen=True)
class Entry:
    """A script or a file with providers, its command line, and where its batch size is."""

    path: str
    arguments: tuple[str, ...]
    site: Site
    # The files that an edit would touch or an editor has unsaved, by path.
    sources: Mapping[str, EditableText]
    unsaved: frozenset[str]
    folder: str
    scratch: Scratch | None = None  # how the project is protected when the script runs; None for not at all
    module: str | None = None  # the name by which `path` is run as a module; None for a script

    @property
    def kind(self) -> str:
        """`providers` or `script`."""
        return "providers" if self.site.kind == "provider" else "script"

    @property
    def batch(self) -> int:
        """The current batch size: from the command line, or from the source."""
        given = given_option(self.arguments, self.site.option) if self.site.option else None
        return int(given) if given and given.isdecimal() else self.site.value

    @property
    def preload(self) -> str:
        """The framework that may be imported before the script asks for it; empty for none."""
        text = self.sources[self.path].text
        if self.kind != "providers" and _CARES_FOR_IMPORT.search(text):
            return ""
        return "jax" if _JAX.search(text) and not _TORCH.search(text) else "torch"

    def request(self, batch: int, **how: Any) -> RunRequest:
        """The request to measure a batch size; `how` are fields of `RunRequest`, such as `effort`
        or `capture`. The user's files are not written."""
        arguments, files = self._with(batch)
        return RunRequest(
            entry=self.path,
            module=self.module,
            result="",
            log="",
            batch=batch,
            providers=self.site.provider and self.site.provider.partition("_")[0],
            arguments=arguments,
            folder=self.folder,
            edits={path: f"{self.sources[path].mark}{text}" for path, text in files.items()},
            encodings={path: self.sources[path].encoding for path in files},
            scratch=self.scratch.to_json() if self.scratch else None,
            **how,
        )

    def _with(self, batch: int) -> tuple[tuple[str, ...], dict[str, str]]:
        """The command line and the files' texts, where they differ, for a batch size."""
        files = {path: self.sources[path].text for path in sorted(self.unsaved)}
        if self.kind != "script" or batch == self.batch:
            return self.arguments, files
        if self.site.option:
            return with_option(self.arguments, self.site.option, batch), files
        text = self.sources[self.site.path].text
        files[self.site.path] = edit_site(text, self.site, batch).apply(text)
        return self.arguments, files


def open_entry(
    path: str | os.PathLike[str],
    arguments: Sequence[str] = (),
    *,
    unsaved: Mapping[str, str] | None = None,
    choice: str | SiteChoice | None = None,
    folder: str | os.PathLike[str] | None = None,
    module: str | None = None,
) -> Entry:
    """Read an entry file and find its batch size.

    Args:
        unsaved: texts that an editor has not saved, by path; they are read in place of the files.
        choice: which batch size, if there are several (see `find_site`).
        folder: where to run; by default here.
        module: the name by which it is run as a module (see `module_file`).

    Raises:
        AmbiguousBatchSize: there are several batch sizes.
        BatchError: there is no such file, it does not parse, or it has no batch size.
    """
    full = str(Path(path).absolute())
    here = str(Path(folder or Path.cwd()).absolute())
    edited = {os.path.realpath(file): _unsaved(file, text) for file, text in (unsaved or {}).items()}

    def source_of(file: str) -> EditableText:
        return edited.get(os.path.realpath(file)) or read_source(file)

    source = source_of(full)
    site = find_site(
        source.text, full, arguments, choice, folder=here, read=lambda file: source_of(file).text
    )
    sources = {text.path: text for text in edited.values()} | {full: source}
    if site.path != full:
        settings = str(Path(site.path).absolute())
        sources[settings] = source_of(settings)
        site = site.at(path=settings)
    site = site.at(option=_as_given(site, read_facts(source.text, full), arguments))
    written = {path for path in sources if os.path.realpath(path) in edited}
    return Entry(full, tuple(arguments), site, sources, frozenset(written), here, module=module)


def module_file(name: str) -> str:
    """The file that `python -m NAME` runs, found without importing anything; raises BatchError if
    there is no such module, or it is not written in Python."""
    folders: Sequence[str] | None = [str(Path.cwd()), *sys.path]
    parts = name.split(".")
    spec = None
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), folders)
        if spec is None:
            raise BatchError(f"there is no module {name} in {Path.cwd()} or on the import path")
        folders = spec.submodule_search_locations
    if spec is not None and folders:
        spec = PathFinder.find_spec(f"{name}.__main__", folders)
    if spec is None or not spec.origin or not spec.origin.endswith(".py"):
        raise BatchError(f"python -m {name} runs no Python file; name one of its modules")
    return spec.origin


def _unsaved(path: str, text: str) -> EditableText:
    """An editor's text of a file, in the encoding that it declares."""
    try:
        encoding = declared_encoding(path, text.encode())
        text.encode(encoding)
    except (SyntaxError, UnicodeError, LookupError) as error:
        raise BatchError(
            f"cannot measure the unsaved text of {path}: {error}; save it first", path
        ) from error
    return EditableText(path, text, encoding)


def given_option(arguments: Sequence[str], option: str) -> str | None:
    """The value that a command line gives an option, the last one counts."""
    return next((arguments[place][start:] for place, start in _values(arguments, option)), None)


def with_option(arguments: Sequence[str], option: str, value: int) -> tuple[str, ...]:
    """A command line that gives an option this value, in its old place if it had one."""
    words, places = list(arguments), _values(arguments, option)
    for place, start in places:
        words[place] = f"{words[place][:start]}{value}"
    end = words.index("--") if "--" in words else len(words)
    return tuple(words if places else (*words[:end], option, str(value), *words[end:]))


def _values(words: Sequence[str], option: str) -> list[tuple[int, int]]:
    """The words with a value of an option, and where it begins in each; the last one first."""
    found = [(place, word) for place, word in enumerate(words) if option_name(word) == option]
    places = [
        (place + 1, 0) if word == option else (place, len(option) + ("=" in word)) for place, word in found
    ]
    return [(place, start) for place, start in reversed(places) if place < len(words)]


def _as_given(site: Site, facts: SourceFacts, arguments: Sequence[str]) -> str | None:
    """What sets a batch size on this command line, the last one counts; by default its option.

    Where the file defines none, `--batch_size` and `train.batch_size=8` may set what has such a name:
    with Hydra, dataclasses and the like.
    """
    if site.option:
        return facts.spelling_of(site.option, arguments) or site.option
    keys = ((word, option_name(word)) for word in reversed(arguments))
    meant = (key for word, key in keys if word.startswith("--") or key != word)
    return next((key for key in meant if _is_named(site, key)), None)


def _is_named(site: Site, key: str) -> bool:
    """Whether a key is the site's, as far as both say where it is."""
    one, other = (f".{name.lstrip('-+').replace('-', '_')}" for name in (key, site.name))
    return (one.endswith(other) or other.endswith(one)) and is_evaluation(one) == is_evaluation(other)
