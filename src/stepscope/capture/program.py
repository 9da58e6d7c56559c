"""Run a script or module in this process as `python` would."""

from __future__ import annotations

import importlib.machinery
import io
import runpy
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

from stepscope.errors import CaptureError


class ModuleMissing(CaptureError):
    """There is no module to run."""


@dataclass(frozen=True)
class Program:
    """A script by its path, or a module by its name, with its arguments."""

    target: str
    arguments: Sequence[str] = ()
    is_module: bool = False

    @property
    def name(self) -> str:
        """What a capture of it is called."""
        return self.target.rpartition(".")[2] if self.is_module else Path(self.target).stem

    @property
    def command(self) -> list[str]:
        """The words after `python`."""
        return [*(["-m"] if self.is_module else []), self.target, *self.arguments]

    def check(self) -> None:
        """Refuse a script that is not there before anything else happens.

        Raises:
            CaptureError: `target` is no file.
        """
        if not self.is_module and not Path(self.target).is_file():
            hint = f"; to run a module use `stepscope run -m {self.target}`"
            is_name = all(part.isidentifier() for part in self.target.split("."))
            raise CaptureError(
                f"expected a Python script to run, found no file {self.target} in {Path.cwd()}"
                f"{hint if is_name and not self.target.endswith('.py') else ''}"
            )

    def execute(self) -> None:
        """Run it to its end; whatever it raises comes through."""
        sys.argv = [self.target, *self.arguments]
        if self.is_module:
            self._execute_module()
        else:
            self._execute_script()

    def _execute_script(self) -> None:
        path = str(Path(self.target).absolute())
        _set_first_import_folder(str(Path(path).resolve().parent))
        main = _replace_main(path, importlib.machinery.SourceFileLoader("__main__", path))
        with io.open_code(path) as source:
            code = compile(source.read(), path, "exec", dont_inherit=True)
        exec(code, main.__dict__)

    def _execute_module(self) -> None:
        _set_first_import_folder(str(Path.cwd()))
        sys.argv[0] = "-m"
        _, spec, code = _find_module(self.target)
        sys.argv[0] = str(spec.origin)
        main = _replace_main(str(spec.origin), spec.loader)
        main.__spec__ = spec
        main.__package__ = spec.parent
        exec(code, main.__dict__)


def _find_module(name: str) -> tuple[str, importlib.machinery.ModuleSpec, CodeType]:
    """As `python -m` finds it; runpy has no public function that stops before running it."""
    try:
        found: tuple[str, importlib.machinery.ModuleSpec, CodeType] = runpy._get_module_details(  # type: ignore[attr-defined]
            name, ImportError
        )
    except ImportError as error:
        raise ModuleMissing(f"expected a module to run, found none named {name}: {error}") from None
    return found


def _set_first_import_folder(folder: str) -> None:
    """Python puts the script's folder first, unless told not to; ours came from `stepscope`."""
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0:1] = [folder]


def _replace_main(path: str, loader: object) -> ModuleType:
    """A fresh `__main__`, which stays in place: threads, atexit and pickle may look for it."""
    main = ModuleType("__main__")
    main.__dict__.update(
        __file__=path, __cached__=None, __builtins__=__builtins__, __loader__=loader
    )
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main
