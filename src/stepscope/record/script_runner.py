"""Run a script or module in this process as `python` would."""

import builtins
import importlib.machinery
import io
import pkgutil
import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from stepscope.base.scratch import original_path
from stepscope.errors import CaptureError


class ModuleMissing(CaptureError):
    """The module to run does not exist."""


@dataclass(frozen=True)
class Program:
    """A script by its path, or a module by its name, with its arguments."""

    target: str
    arguments: Sequence[str] = ()
    is_module: bool = False

    @property
    def name(self) -> str:
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem

    @property
    def command(self) -> list[str]:
        """The words after `python`."""
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]

    def check(self) -> None:
        """Refuse a missing script before anything else happens."""
        if not self.is_module and not (Path(self.target).is_file() or self._is_application):
            hint = f"; to run a module use `stepscope run -m {self.target}`"
            is_name = all(part.isidentifier() for part in self.target.split("."))
            raise CaptureError(
                f"cannot run {self.target}: there is no such file in {Path.cwd()}"
                f"{hint if is_name and not self.target.endswith('.py') else ''}"
            )

    @property
    def _is_application(self) -> bool:
        """Whether it is a folder or a zip file with a `__main__.py`."""
        path = Path(self.target)
        if path.is_dir():
            return (path / "__main__.py").is_file()
        return pkgutil.get_importer(self.target) is not None

    def execute(self) -> None:
        """Run it to its end; its exceptions propagate."""
        sys.argv = [self.target, *self.arguments]
        if self.is_module:
            run = self._prepare_module()
        elif self._is_application:
            run = self._prepare_application()
        else:
            run = self._prepare_script()
        main = sys.modules["__main__"].__dict__
        removed_at_end = () if self.is_module or self._is_application else ("__file__", "__cached__")
        try:
            run()
        finally:
            _stop_profiling()
            _stop_tracing()
        for name in removed_at_end:  # which it removes before exit handlers run
            main.pop(name, None)

    def _prepare_script(self) -> Callable[[], object]:
        path = str(Path(self.target).absolute())
        _set_first_import_folder(str(Path(path).resolve().parent))
        main = _replace_main(path, importlib.machinery.SourceFileLoader("__main__", path))
        with io.open_code(path) as source:
            code = compile(source.read(), original_path(path), "exec", dont_inherit=True)
        return partial(exec, code, main.__dict__)

    def _prepare_module(self) -> Callable[[], object]:
        _set_first_import_folder(str(Path.cwd()))
        sys.argv[0] = "-m"
        _check_module(self.target)
        _replace_main(None, importlib.machinery.BuiltinImporter)
        return partial(_run_as_main, self.target, True)

    def _prepare_application(self) -> Callable[[], object]:
        sys.path[0:1] = [self.target]
        _replace_main(None, importlib.machinery.BuiltinImporter)
        return partial(_run_as_main, "__main__", False)


_runpy: Any = runpy
# What `python -m` itself calls, so that tracebacks are the same.
_run_as_main: Callable[[str, bool], object] = _runpy._run_module_as_main


def _check_module(name: str) -> None:
    """Refuse a missing module; runpy has no public function that stops before running it."""
    try:
        _runpy._get_module_details(name, ImportError)
    except ImportError as error:
        raise ModuleMissing(f"cannot run module {name}: {error}") from None


def _set_first_import_folder(folder: str) -> None:
    """Python puts the script's folder first (unless safe_path); ours came from `stepscope`."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


# A trace or profile function that the program left must see no call of ours, nor these.
_stop_profiling, _stop_tracing = partial(sys.setprofile, None), partial(sys.settrace, None)


def _replace_main(path: str | None, loader: object) -> ModuleType:
    """A fresh `__main__`, which stays: threads, atexit and pickle may look it up."""
    main = ModuleType("__main__")
    main.__dict__["__loader__"] = loader
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    main.__dict__["__builtins__"] = builtins
    if path is not None:
        main.__dict__.update(__file__=path, __cached__=None)
    if sys.modules.get("__mp_main__") is sys.modules["__main__"]:
        sys.modules["__mp_main__"] = main  # by which spawned children name its classes
    sys.modules["__main__"] = main
    return main
