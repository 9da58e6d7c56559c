"""Where the user's code calls a module, and the name that the user gives it there."""

import inspect
import os
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any


def is_library(file: str) -> bool:
    """Whether code is installed, so that its variables say nothing to the user."""
    return not {"site-packages", "dist-packages"}.isdisjoint(Path(file).parts)


_SPECS = [spec for name in ("torch", "jax") if (spec := find_spec(name)) and spec.submodule_search_locations]
_FOLDERS = *(Path(spec.origin).parent for spec in _SPECS if spec.origin), Path(__file__).parent
_FILES = tuple(f"{folder}{os.sep}" for folder in _FOLDERS)  # not of torchvision, whose folder begins alike
# Folders of what is installed, also for one user or below a virtual environment, for `str.startswith`.
LIBRARIES = (*map(sysconfig.get_path, ("stdlib", "purelib", "platlib")), *filter(is_library, sys.path))

_DEEPEST = 40  # frames that are searched for the model whose method runs
_LARGEST = 1000  # a list or dict in which a module is searched
_LONGEST = 100  # characters of a key that names what a dict holds; a longer one is data
_OWN_REFERENCES = 3  # of the frame, the variable, and the call that counts them


def is_internal(file: str) -> bool:
    """Whether code is torch's, JAX's or ours."""
    return file.startswith(_FILES)


def user_frame(frame: FrameType | None) -> FrameType | None:
    """The nearest frame, from `frame` outwards, that is neither a framework's nor ours."""
    while frame is not None and is_internal(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def user_frames(frame: FrameType | None, most: int) -> Iterator[FrameType]:
    """Frames that are neither a framework's nor ours, from `frame` outwards, at most so many."""
    for _ in range(most):
        frame = user_frame(frame)
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def name_in(frame: FrameType | None, module: Any) -> str | None:
    """The variable of `frame`, or the attribute of its `self`, that holds `module`."""
    return next((name for name, held in variables(frame) if held is module), None)


def holder_in(frame: FrameType | None, module: Any) -> tuple[Any, str | None]:
    """What holds `module` in a variable of `frame`, or in an attribute of its `self`.

    A module with its variable, such as an `nn.ModuleDict`; or `module` itself with its place in a list
    or dict (`heads.0`); or `module` and None.
    """
    for name, held in variables(frame):
        if is_module(held) and _holds(held, module):
            return held, name
        if keys := [key for key, part in entries(held, _LARGEST) if part is module]:
            return module, f"{name}.{keys[0]}"
    return module, None


def entries(held: Any, most: int) -> Iterable[tuple[Any, Any]]:
    """The keys or positions of a dict, list or tuple with their values; nothing of others, or of larger ones.

    None of the program's own methods is called: it may load what it holds only when it is asked. For a key
    that is no name, as a parameter, whose text has its values, its position.
    """
    kind: Any = next((kind for kind in (dict, list, tuple) if issubclass(type(held), kind)), None)
    if kind is None or kind.__len__(held) > most:
        return ()
    if kind is not dict:
        return enumerate(kind.__iter__(held))
    return [(key if _is_name(key) else at, part) for at, (key, part) in enumerate(dict.items(held))]


def _is_name(key: Any) -> bool:
    return type(key) is int or (type(key) is str and len(key) <= _LONGEST)


def variables(frame: FrameType | None) -> list[tuple[str, Any]]:
    """The variables of `frame` and the attributes of its `self`, innermost scope first."""
    if frame is None:
        return []
    local = _local_variables(frame)
    scopes = [local, _attributes(local.get("self")), dict(frame.f_globals)]
    pairs = (pair for scope in scopes for pair in scope.items())
    return [pair for pair in pairs if pair[0].strip("_") and pair[0] != "self"]


def owner_of(frame: FrameType | None, module: Any) -> tuple[Any, FrameType | None]:
    """The outermost module that holds `module` and one of whose methods led to `frame`, and the user's
    frame that called its method; None for both if there is none."""
    owner: Any = None
    caller: FrameType | None = None
    for _ in range(_DEEPEST):
        if frame is None:
            break
        outer = user_frame(frame.f_back)
        holder = self_of(frame)
        if is_module(holder) and _holds(holder, module):
            owner, caller = holder, outer
        frame = outer
    return owner, caller


def self_of(frame: FrameType) -> Any:
    """The first argument of a method."""
    names = frame.f_code.co_varnames[: frame.f_code.co_argcount]
    return _local_variables(frame).get(names[0]) if names else None


def is_module(value: Any) -> bool:
    """Not by `import torch`: code is also looked up where only JAX is loaded.

    Nor by `isinstance`, which asks what stands for something else (a lazy object) to be it.
    """
    return issubclass(type(value), sys.modules["torch"].nn.Module)


def _holds(holder: Any, module: Any) -> bool:
    return any(held is module for held in holder.modules() if held is not holder)


def _local_variables(frame: FrameType) -> dict[str, Any]:
    """A copy of the frame's variables.

    Before Python 3.13 the frame keeps what `f_locals` returns, and with it a batch of data for as
    long as the function runs. So it is emptied, unless the program holds it, too (`locals()`).
    """
    kept: Any = frame.f_locals
    local = dict(kept)
    is_function = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if is_function and type(kept) is dict and sys.getrefcount(kept) <= _OWN_REFERENCES:
        kept.clear()
    return local


def _attributes(holder: Any) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    with suppress(AttributeError):  # it has slots
        attributes = object.__getattribute__(holder, "__dict__")
    # Objects of other libraries may use the name `_modules` for something else (skorch: a list).
    modules = attributes.get("_modules", {}) if is_module(holder) else {}
    return {**attributes, **modules}
