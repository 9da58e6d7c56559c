"""What to collect, the kinds of frames that are collected, and how the file is kept up to date."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope.base.input_files import content_of
from stepscope.errors import CaptureError

SOURCES = {"python": 1, "module": 2, "operator": 4, "native": 8, "kernel": 16}
# Kinds of frames by their numbers, as native/snapshot.cpp lists them.
KINDS = (
    *("root", "thread", "python", "module", "operator", "annotation", "runtime"),
    *("native", "kernel", "instruction"),
)
# What a function of a driver does, and the types of its arguments: bits, and whether they are signed.
_CALLS = ("launch", "copy", "synchronize", "allocate", "release", "other")
_TYPES = {"u64": (64, False), "i64": (64, True), "u32": (32, False), "i32": (32, True)}
_MOST_FUNCTIONS = 256  # as many stubs as native/library_calls.cpp has
_MOST_ARGUMENTS = 6 + 32  # in registers, and on the stack as a stub hands them on (library_calls.cpp)
# Library, function, what it does, and (name, position from 0, bits, whether signed) of each argument.
DriverFunction = tuple[str, str, str, tuple[tuple[str, int, int, bool], ...]]
# The content of modules.json: contexts have their modules in the tree.
NO_MODULES: dict[str, Any] = {"roots": []}


@dataclass(frozen=True)
class ContextOptions:
    """What to collect, as in `stepscope.record_contexts`."""

    python: bool = True
    modules: bool = True
    native: bool = False
    device: bool = True
    memory: bool = False
    sample: int = 0
    sample_real: int = 0
    perf: bool = False
    stalls: bool = False
    limit: int = 1 << 20  # contexts to keep at most
    drivers: tuple[DriverFunction, ...] = ()
    flush_s: float = 30.0  # how often the file is written during the run, seconds

    @property
    def sources(self) -> int:
        """The kinds of frames, as the collector numbers them."""
        wanted = {
            "python": self.python,
            "module": self.modules,
            "operator": True,
            "native": self.native,
            "kernel": self.device,
        }
        return sum(SOURCES[name] for name, on in wanted.items() if on)


def read_drivers(path: str | Path | None) -> tuple[DriverFunction, ...]:
    """The functions of other devices' libraries that a file names (docs/reference/shim.md).

    None without a file. Raises CaptureError if it cannot be read, or names none or what cannot be followed.
    """
    if not path:
        return ()
    try:
        import tomllib

        content = tomllib.loads(content_of(path).decode())
        functions = tuple(
            _function(library, name, described)
            for library, listed in content.items()
            for name, described in _table(listed, library).items()
        )
    except ImportError:
        raise CaptureError(f"{path}: a file of drivers needs Python 3.11 or later") from None
    except OSError as error:
        raise CaptureError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise CaptureError(f"{path}: {error}; docs/reference/shim.md has an example") from None
    if not 0 < len(functions) <= _MOST_FUNCTIONS:
        raise CaptureError(f"{path} names {len(functions)} functions, expected 1 to {_MOST_FUNCTIONS}")
    return functions


def _table(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"expected a table for {where}, found {value!r}")
    return value


def _function(library: str, name: str, described: Any) -> DriverFunction:
    where = f"{library}: {name}"
    facts = {"call": described} if isinstance(described, str) else dict(_table(described, where))
    if (call := facts.pop("call", None)) not in _CALLS:
        raise ValueError(f"{where} has call = {call!r}, expected one of {', '.join(_CALLS)}")
    return library, name, call, tuple(_argument(where, *pair) for pair in facts.items())


def _argument(where: str, name: str, described: Any) -> tuple[str, int, int, bool]:
    position, kind = described if isinstance(described, list) and len(described) == 2 else (described, "u64")
    is_right = name.isidentifier() and type(position) is int and 1 <= position <= _MOST_ARGUMENTS
    if not is_right or kind not in _TYPES:
        raise ValueError(
            f"{where}: argument {name!r} is {described!r}, expected its position, 1 to {_MOST_ARGUMENTS}, "
            f"or [position, type] with a type of {', '.join(_TYPES)}"
        )
    return name, position - 1, *_TYPES[kind]
