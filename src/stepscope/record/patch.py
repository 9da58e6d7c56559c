"""Replaces functions of the program by ours and restores them, now or once a module is imported.

Scripts set environment variables before `import torch`; importing it first would undo that.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import chain, pairwise, starmap
from types import FrameType, ModuleType
from typing import Any

from stepscope.record.call_sites import LIBRARIES, is_internal
from stepscope.record.process_exit import entries_of


def pass_on(error: BaseException) -> None:
    """Raise what our code has caught, if a signal handler, debugger or other thread of the program raised it.

    Python calls the former, alone, with the frame that they interrupt; of the latter no frame is seen.
    """
    frames = [entry.tb_frame for entry in entries_of(error.__traceback__)]
    names = (type(error).__module__, *(str(frame.f_globals.get("__name__")) for frame in frames))
    files = {name: getattr(sys.modules.get(name), "__file__", None) or LIBRARIES[0] for name in names}
    others = {name for name, file in files.items() if is_internal(file) or file.startswith(LIBRARIES)}
    has_kind, *have_frames = (not (name.startswith("stepscope") or name in others) for name in names)
    if (has_kind and not any(have_frames)) or any(starmap(_is_interrupted, pairwise(frames))):
        raise error
    if (replaced := error.__context__) and getattr(replaced.__traceback__, "tb_frame", None) in frames:
        pass_on(replaced)


def _is_interrupted(frame: FrameType, by: FrameType) -> bool:
    is_ours = str(by.f_globals.get("__name__")).startswith("stepscope.")
    words = (word if isinstance(word, tuple) else (word,) for word in by.f_locals.values())
    return not is_ours and any(word is frame for word in chain.from_iterable(words))


class ignoring(suppress):
    """As `suppress`, but what is the program's passes; `then` gets what is ignored."""

    def __init__(self, *kinds: type[Exception], then: Callable[[Any], object] = id) -> None:
        super().__init__(*kinds)
        self._then = then

    def __exit__(self, *raised: Any) -> bool:
        if is_ignored := bool(super().__exit__(*raised)):
            pass_on(raised[1])
            self._then(raised[1])
        return is_ignored


def holders(function: Any, name: str) -> list[Any]:
    """The modules that have a function under its name: its own, those that re-export it, the program's."""
    return [one for one in [*sys.modules.values()] if getattr(one, "__dict__", {}).get(name) is function]


def replace(holder: Any, name: str, ours: Any) -> Callable[[], None]:
    """Set an attribute; what is returned restores it, unless it has been replaced meanwhile.

    What the holder had from its class, or as a built-in function, is not its own afterwards either.
    """
    has_own, original = name in vars(holder), vars(holder).get(name)
    setattr(holder, name, ours)

    def restore() -> None:
        if vars(holder).get(name) is ours:
            setattr(holder, name, original) if has_own else delattr(holder, name)

    return restore


def undo(restore: list[Callable[[], Any]]) -> None:
    """Call what `replace` returned, the last first, whatever the program has made of some."""
    while restore:
        with ignoring(Exception):
            restore.pop()()


class Hooks:
    """What is put into the program, until it is removed."""

    _restore: list[Callable[[], Any]]  # what `replace` returned

    def remove(self) -> None:
        """Leave the program as it was; what was noted stays known."""
        undo(self._restore)


def subclasses(cls: type) -> Iterator[type]:
    """All classes derived from a class."""
    derived: list[type] = type.__subclasses__(cls)
    for one in derived:
        yield one
        yield from subclasses(one)


class AfterImport(MetaPathFinder):
    """A finder that delegates to the other finders and calls `action` once `name` is imported.

    The module keeps its own loader: only that loader's `exec_module` is wrapped, on the instance, and only
    until it has run. Asking for the spec alone, as `importlib.util.find_spec` does, triggers nothing.
    """

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name = name
        self._action = action

    def install(self) -> None:
        """Start watching; if the module is already imported, act now."""
        if self._name in sys.modules:
            self._action()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Part of the import protocol."""
        if fullname != self._name:
            return None
        # Only later finders: another watch would ask this one again. A program may have wrapped all.
        later = sys.meta_path[sys.meta_path.index(self) + 1 :] if self in sys.meta_path else [PathFinder]
        for finder in later:
            find = getattr(finder, "find_spec", None)  # Python passes over those without it
            if find and (spec := find(fullname, path, target)):
                self._watch(spec.loader)
                return spec
        return None

    def _watch(self, loader: Loader | None) -> None:
        if loader is None:
            return
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(loader).pop("exec_module", None)  # another watch may have wrapped it too
            execute(module)
            self.remove()
            self._action()

        loader.exec_module = exec_module  # type: ignore[method-assign]


def around_compilations(also: Callable[..., AbstractContextManager[None]]) -> list[Callable[[], object]]:
    """Enter a context around what torch compiles; its own callbacks `torch._dynamo.reset` would clear."""
    restore: list[Callable[[], object]] = []

    def follow() -> None:
        handler: Any = getattr(sys.modules["torch._dynamo.callback"], "callback_handler", None)
        if install := getattr(handler, "install_callbacks", None):  # old versions have none

            @contextmanager
            def install_callbacks(*args: Any, **kwargs: Any) -> Iterator[None]:
                with install(*args, **kwargs), also(*args):
                    yield

            restore.append(replace(handler, "install_callbacks", install_callbacks))

    watch = AfterImport("torch._dynamo.callback", follow)
    watch.install()
    return [watch.remove, lambda: undo(restore)]
