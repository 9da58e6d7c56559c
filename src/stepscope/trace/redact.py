"""A trace without what identifies its user: texts replaced, kernels, operators and numbers kept.

The same word is replaced by the same word, under one secret key. A word is kept if the analysis looks for it,
that is, if a text in the source of stepscope's analysis has it: what no rule knows, no number depends on.
Numbers are kept, too. In paths, and in the paths of modules, no word is kept but those of public packages.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from stepscope.base.typed_data import decode
from stepscope.base.unfinished_files import unfinished_file
from stepscope.trace.arguments import ArgumentBlock, Arguments, parse
from stepscope.trace.declaration import DEVICE_WORK
from stepscope.trace.portable import REDACTED
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Metadata, Trace

REVEALED = (
    "kernels, operators and calls of libraries, and their shapes and types",
    "times, when the recording began, sizes, counts, line numbers, and numbers in names",
    "names and versions of devices and frameworks, ranks and process numbers",
    "files of public packages, and words that stepscope looks for, such as forward or loss",
    "which names are the same, in all files redacted with one key",
)
_PATHS = {"modules.path", "modules.name", "storages.path", "contexts.module", "evidence.module"}
_FILES = {"modules.file", "modules.call_file", "frames.file", "stacks.file"}
_FILES |= {"storages.file", "contexts.file", "evidence.file", "instruction_samples.file"}
_RANGES = ("annotation", "python", "other")  # whose names are the user's, also if they look like operators
_FREE = ("capture", "captures", "model", "properties", "recording_cost")  # of the metadata, with any texts
_DEVICE_KINDS = ("kernel", "memcpy", "memset", "communication")  # of contexts
_ANALYSIS = ("base", "record", "read", "trace", "facts", "graph", "models", "analyze")
_LITERAL = re.compile(r'"([^"\n]*)"')
_DOCSTRING = re.compile(r'"""[\s\S]*?"""')
_SENTENCE = re.compile(r"(?:^| )(?:a|an|and|are|as|by|for|in|is|its?|not?|of|on|or|that|the|to|with)(?:$| )")
_KEY_BYTES = 32  # of a secret, as long as SHA-256's result
# Marks and symbols of any script are letters, too: names have vowel signs and pictures.
_OTHER = "\u0300-\ud7ff\ue000-\U0010ffff"  # without surrogates, which are parts of a damaged text
_WORD = re.compile(rf"(?<![\w{_OTHER}])\d*(?:[^\W\d]|[{_OTHER}])[\w{_OTHER}]*")
_ADDRESS = re.compile(  # of a machine: UUID, MAC, IPv4 (also in names, ip-10-1-2-3 and node10.1.2.3), IPv6
    r"(?i)\b(?:[\da-f]{8}(?:-[\da-f]{4,12}){4}|[\da-f]{2}(?:-[\da-f]{2}){5}|[\da-f]{4}(?:\.[\da-f]{4}){2}"
    r"|(?:\d{1,3}-){3}\d{1,3}|(?:[\da-f]{1,4}:){4,7}[\da-f]{1,4}"
    r"|(?=[\da-f:]*::)(?:[\da-f]{1,4}::?){1,7}[\da-f]{1,4})\b|(?<!\d)(?:\d{1,3}\.){3}\d{1,3}\b"
)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}")  # a pointer; more digits are a key or a digest
_NUMBERED = re.compile(r"(.*?)(\d*(?:_\d+)*)", re.DOTALL)
_EXPONENT = re.compile(r"\d+[eE]\d*")  # of 1.5e-05
_SIZES = re.compile(r"\d+(?:x\d+)+")  # of a product of matrices
_FRAME = re.compile(r"([^()]+)\(\d+\): .*", re.DOTALL)
_DOTTED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?:\.\w+)+")
_BACKWARD = re.compile(r"[A-Z]\w*Backward\d+")  # of PyTorch's operators; a user's function has no number
_TRITON = re.compile(r"triton_[a-z]+_fused\w*")  # kernels that torch.compile names by their operators
_OPERATOR = re.compile(r"[A-Za-z_]\w*(?:::[\w.]+)+")
# As AMD's instructions begin: "MI300 Instruction Set Architecture", chapters 5 to 11.
_INSTRUCTION = re.compile(r"((?:s|v|ds|flat|global|scratch|buffer|tbuffer)_[a-z0-9_]+)\b.*(\+0x[0-9a-f]+)")
_CALL = re.compile(r"(?:cu|cuda|hip|nccl|rccl|nvrtc)[A-Z]\w*")
_ENDING = r"\.(?:pyx?|pyi|c|cc|cpp|cu|cuh|h|hpp|json|gz|zst|pb|sqlite|pickle|stepscope|yaml|toml|sh|ipynb)\b"
_PATH = re.compile(
    r"(?<![\w)/\\.])(?:~|\.{1,2}|[A-Za-z]:)?(?:[/\\][^\s:;,()<>\[\]{}\"'|]+)"
    rf"|(?<![\w)])[^\s:;,()<>\[\]{{}}\"'|]+{_ENDING}"
)
_XLA = re.compile(r"/(?:device|host|job|replica|task)\b")  # names of its planes, not files
_LONG_RUN = re.compile(r"(?<!\S)\S{4096,}")  # letters; patterns take the square of what is no word
_SPLIT = re.compile(r"([/\\])")
_INSTALLED = ("site-packages", "dist-packages")
_LIBRARY = re.compile(r"python3\.\d+")
# Names that are kept: of packages, of their classes, which traces name without their package, and
# words of profilers, beyond those that the analysis looks for.
_KEPT_NAMES = decode(Path(__file__).with_suffix(".json").read_bytes(), dict[str, str])
_PUBLIC, _CLASSES, _PROFILERS = (
    frozenset(_KEPT_NAMES[kind].split()) for kind in ("packages", "classes", "profilers")
)
# Begins of files that are kept without the folder that a package is installed in, as PyTorch writes
# them: a user's own `jax/train.py` is not among them.
_BY_NAME_ALONE = frozenset(_KEPT_NAMES["files"].split())


def redacted(trace: Trace, words: Words) -> Trace:
    """The annotated trace with texts replaced by `words`; rows, order and numbers are the same."""
    tables = {name: _table(table, words) for name, table in trace.tables.items()}
    return Trace(tables, _metadata(trace.metadata, words), _arguments(trace.arguments, words))


def _table(table: Table, words: Words) -> Table:
    columns = {
        column.name: _column(table, column.name, words)
        for column in table.schema.columns
        if column.kind == "text" and not column.values and len(table)
    }
    return table.with_columns(**columns) if columns else table


def _column(table: Table, column: str, words: Words) -> Text:
    name, text = f"{table.schema.name}.{column}", table.text(column).compact()
    if name == "events.name":
        return _names(text, table.text("category"), DEVICE_WORK, words)
    if name == "instruction_samples.instruction":
        return text.map(words.instruction)
    if name == "contexts.name":
        return _names(text, table.text("kind"), _DEVICE_KINDS, words)
    change = words.module_path if name in _PATHS else words.file if name in _FILES else words.text
    change = words.class_name if name == "modules.class" else change
    return text.map(change)


def _names(names: Text, kinds: Text, of_device: tuple[str, ...], words: Words) -> Text:
    """Names of device work as they are, of ranges and others replaced: all may have the same name."""
    how = np.select([kinds.mask(*of_device), kinds.mask("instruction"), kinds.mask(*_RANGES)], [3, 2, 1])
    rules = words.event, words.range, words.instruction, str
    values = [rule(name) for rule in rules for name in names.values]
    codes = np.where(names.codes < 0, -1, names.codes + how * len(names.values))
    return Text(codes, values).compact().map(str)


def _metadata(metadata: Metadata, words: Words) -> Metadata:
    plain: dict[str, Any] = msgspec.to_builtins(metadata.to_json(), enc_hook=str)
    replaced = {name: words.value(plain[name]) for name in _FREE}
    replaced["properties"][REDACTED] = True
    return replace(metadata, source="", devices=tuple(words.value(plain["devices"], "devices")), **replaced)


def _arguments(arguments: Arguments, words: Words) -> Arguments:
    encode, value = msgspec.json.encode, words.value
    blocks: list[ArgumentBlock] = []
    for block in arguments.blocks:
        texts = [encode(value(parse(text))) for _, text in Arguments((block,)).items()]
        blocks.append(ArgumentBlock.of(block.sources, texts))
    return Arguments(tuple(blocks))


class Words:
    """Replaces words under a key; texts that were replaced are kept, as traces repeat them."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.text: Callable[[str], str] = cache(self._text)
        self.file: Callable[[str], str] = cache(self._file)
        self._private: Callable[[str], str] = cache(self._replaced)

    def module_path(self, path: str) -> str:
        """The path of a module: its numbers are kept, and classes of public packages in it."""
        return _WORD.sub(lambda match: self._part(match[0]), path)

    def class_name(self, name: str) -> str:
        """The class of a module, as `module_path` replaces it, where some recorders name modules by it."""
        return name if name.partition(".")[0] in _PUBLIC else self.module_path(name)

    def _part(self, word: str) -> str:
        return word if _stem(word)[0] in _CLASSES or _EXPONENT.fullmatch(word) else self._private(word)

    def event(self, name: str) -> str:
        """The name of an event on the CPU: calls of libraries and operators of any package are kept."""
        return name if _OPERATOR.fullmatch(name) or _CALL.fullmatch(name) else self.range(name)

    def instruction(self, text: str) -> str:
        """A device's instruction: its mnemonic is kept, and where it is in its kernel."""
        match = _INSTRUCTION.fullmatch(text)
        return f"{match[1]} {match[2]}" if match else self.text(text)

    def range(self, name: str) -> str:
        """The name of a range: frames of public packages are kept."""
        if (frame := _FRAME.fullmatch(name)) and frame[1].partition("/")[0] in _PUBLIC:
            return name if self.file(frame[1]) == frame[1] else self.text(name)
        head, mark, path = name.partition("stepscope.module: ")
        return mark + self.module_path(path) if mark and not head else self.text(name)

    def value(self, value: Any, key: str = "") -> Any:
        """Plain data with its texts replaced, and its keys; structs as dictionaries that keep theirs."""
        if isinstance(value, str):
            return self._rule(key)(value)
        if isinstance(value, dict):
            return dict(self._item(key, str(name), item) for name, item in value.items())
        if isinstance(value, (list, tuple)):
            return [self.value(item, key) for item in value]
        if isinstance(value, msgspec.Struct):
            items = msgspec.structs.asdict(value).items()
            return {name: item if name in _WORDS else self.value(item, name) for name, item in items}
        return value

    def _item(self, key: str, name: str, value: Any) -> tuple[str, Any]:
        """An item of a dictionary under `key`."""
        if key == "devices" and name in _DEVICE_NAMES:
            return name, value
        of_modules = key == "updated_modules"  # by optimizer
        return name if key in _SETTINGS else self.text(name), self.value(
            value, "path" if of_modules else name
        )

    def _rule(self, key: str) -> Callable[[str], str]:
        if key in _OF_MODULES:
            return self.module_path
        return self.class_name if key == "class" else self.event if key == "kernel" else self.text

    def _text(self, text: str) -> str:
        """Any text: paths as paths, other words unless the analysis knows them."""
        text = _LONG_RUN.sub(lambda run: self._private(run[0][:64]), text)
        return _mapped(_PATH, text, self._path, self._words)

    def _path(self, path: str) -> str:
        return self._words(path) if _XLA.match(path) else self.file(path)

    def _file(self, path: str) -> str:
        """The path of a file: what follows a public package is kept, and endings."""
        parts = _SPLIT.split(path)
        public = len(parts) if ".." in parts else _public_from(parts)  # it may lead out of the package
        private = [self._component(part) for part in parts[:public]]
        if private and parts[0] in _PUBLIC:
            private[0] = parts[0]
        return "".join([*private, *parts[public:]])

    def _component(self, part: str) -> str:
        if part in _INSTALLED or _LIBRARY.fullmatch(part) or part in ("lib", "tmp", "<stdin>", "<string>"):
            return part
        ending = re.search(rf"(?:{_ENDING})+$", part)
        stem = part[: ending.start()] if ending else part
        return self.module_path(_ADDRESS.sub(self._address, stem)) + (ending[0] if ending else "")

    def _address(self, match: re.Match[str]) -> str:
        return self._private(f"address {match[0]} ")  # ends in no number, which would stay

    def _words(self, text: str) -> str:
        return _mapped(_DOTTED, text, self._dotted, self._plain)

    def _dotted(self, name: str) -> str:
        return name if name.partition(".")[0] in _PUBLIC else self._plain(name)

    def _plain(self, text: str) -> str:
        return _WORD.sub(lambda match: self._word(match[0]), _ADDRESS.sub(self._address, text))

    def _word(self, word: str) -> str:
        if _is_known(word) or _is_known(_stem(word)[0]) or any(kept.fullmatch(word) for kept in _KEPT):
            return word
        if word.startswith("jit_"):  # what JAX calls the program of a function
            return "jit_" + self._word(word[4:])
        return self._private(word)

    def _replaced(self, word: str) -> str:
        """Eight letters for a word, and its number: letters, so that numbers stay what they are."""
        stem, number = _stem(word)
        if not stem:
            return word
        digest = hmac.digest(self._key, stem.encode(), hashlib.sha256)
        letters = "".join(chr(97 + byte % 26) for byte in digest[:8])
        letters += "fused" * ("fused" in stem.lower())  # what the analysis asks of any optimizer's name
        return (letters.capitalize() if stem[0].isupper() else letters) + number


def own_words() -> Words:
    """`Words` under this user's secret, which is made once, whole: an empty one hides nothing."""
    from platformdirs import user_data_path

    path = user_data_path("stepscope") / "redaction.key"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or not path.stat().st_size:
        with unfinished_file(path) as name:
            with os.fdopen(os.open(name, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "wb") as new:
                new.write(secrets.token_bytes(_KEY_BYTES))
            name.replace(path)
    return Words(path.read_bytes())


_KEPT = (_BACKWARD, _HEX, _EXPONENT, _SIZES, _TRITON)
_OF_MODULES = {"path", "module", "base", "modules", "root"}
_WORDS = {"kind", "outcome", "version", "profiling_name", "state", "input_dtypes", "output_dtypes"}
_SETTINGS = {"allocator_settings", "options"}  # names of PyTorch and of the recorder
_DEVICE_NAMES = {"name", "device_vendor", "gcnArchName"}  # by which data sheets are found


def _mapped(
    pattern: re.Pattern[str], text: str, inside: Callable[[str], str], outside: Callable[[str], str]
) -> str:
    """The text with what matches mapped in one way, and what is between in another."""
    ends = [0, *(end for match in pattern.finditer(text) for end in match.span()), len(text)]
    parts = [text[start:end] for start, end in pairwise(ends)]
    return "".join([outside(part) if row % 2 == 0 else inside(part) for row, part in enumerate(parts)])


def _stem(word: str) -> tuple[str, str]:
    match = _NUMBERED.fullmatch(word)
    return (match[1], match[2]) if match else (word, "")


def _public_from(parts: list[str]) -> int:
    """The position from which a path is of a public package, or of Python's own modules."""
    for row, part in enumerate(parts):
        package = parts[row + 2].removesuffix(".py") if row + 2 < len(parts) else ""
        library = _LIBRARY.fullmatch(part) and package in sys.stdlib_module_names
        if library or (part in _INSTALLED and package in _PUBLIC):
            return row + 2
    relative = "".join(parts)
    is_own = relative.endswith(".py") and "".join(parts[:3]).removesuffix(".py") in _BY_NAME_ALONE
    return 0 if is_own or relative in _standard_files() else len(parts)


@cache
def _standard_files() -> frozenset[str]:
    """The files of Python's own library, as profilers name them, some of them built in."""
    folder = Path(os.__file__).parent
    names = (name for name in sys.stdlib_module_names if (folder / name).is_dir())
    files = [*folder.glob("*.py"), *(file for name in names for file in (folder / name).rglob("*.py"))]
    built_in = (f"{name}.py" for name in sys.stdlib_module_names)
    return frozenset([*built_in, *(file.relative_to(folder).as_posix() for file in files)])


def _is_known(word: str) -> bool:
    bare = word.strip("_")
    return not bare or word in _vocabulary() or bare in _CLASSES or word in _PROFILERS or word in _PUBLIC


@cache
def _vocabulary() -> frozenset[str]:
    """The words in the texts of stepscope's own analysis, without those of documentation and sentences."""
    folders = (Path(__file__).parents[1] / name for name in _ANALYSIS)
    sources = (file.read_text("utf-8") for folder in folders for file in folder.rglob("*.py"))
    texts = (text for source in sources for text in _LITERAL.findall(_DOCSTRING.sub("", source)))
    return frozenset(word for text in texts if not _SENTENCE.search(text) for word in _WORD.findall(text))
