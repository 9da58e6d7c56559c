"""Builds the compiled decoder of trace events.

`hatch_build.py` calls it when a wheel is made or the project is installed for development, before
anything else is installed, so it imports nothing but the standard library. After a change of the
source: `python src/stepscope/ingest/chrome/build_decoder.py`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).parent / "native" / "decode_events.cpp"
LIBRARY = SOURCE.with_suffix(".so")
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden")


def build(library: Path = LIBRARY, flags: tuple[str, ...] = ()) -> str:
    """Build the decoder, unless it is newer than its source.

    Args:
        library: where to put it; nothing is left there if it cannot be built.
        flags: further ones for the compiler.

    Returns:
        Why it was not built, empty if it is there now.
    """
    if library.is_file() and library.stat().st_mtime >= SOURCE.stat().st_mtime:
        return ""
    library.unlink(missing_ok=True)
    if sys.platform == "win32":
        return "no build for Windows yet"
    if (compiler := _compiler()) is None:
        return "no C++ compiler (c++, g++ or clang++ on the PATH, or $CXX)"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        command = [compiler, *_FLAGS, *flags, "-o", str(built), str(SOURCE)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()}"
        built.replace(library)
    return ""


def _compiler() -> str | None:
    chosen = os.environ.get("CXX")
    names = [chosen] if chosen else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


if __name__ == "__main__":
    LIBRARY.unlink(missing_ok=True)
    sys.exit(build() or None)
